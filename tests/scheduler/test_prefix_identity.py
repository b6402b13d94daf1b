"""Hashes, keys and what the index keeps of a page (engine.md §6, api.md)."""

import struct
from hashlib import sha256

import pytest

from kvplan.scheduler import Scheduler
from kvplan.scheduler.cache.blocks import BlockPool
from kvplan.scheduler.cache.prefix import BoundaryKind, page_keys, split_key
from kvplan.scheduler.cache.tiers import KnownKeys
from kvplan.scheduler.kv_events import block_hash
from tests.support.groups import config, full
from tests.support.hashing import block_hashes, prefix_digests
from tests.support.peek import device_index

TOKENS = [7, 1, 2**31 - 1, 50_000, 3, 3, 3, 3, 9]


def test_a_prefix_page_hash_is_sha_256_over_prior_page_size_and_tokens() -> None:
    first = sha256(struct.pack("<II4I", 0, 4, *TOKENS[:4])).digest()
    second = sha256(struct.pack("<I", 32) + first + struct.pack("<I4I", 4, *TOKENS[4:8])).digest()
    scheduler = Scheduler(config())
    assert scheduler.prefix_hashes_for_tokens(TOKENS) == [first.hex(), second.hex()]


@pytest.mark.parametrize(("tokens", "pages"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_only_pages_below_the_last_token_are_probed(tokens: int, pages: int) -> None:
    assert len(Scheduler(config()).prefix_hashes_for_tokens(list(range(tokens)))) == pages


def test_hashes_do_not_depend_on_how_many_are_asked_for_at_once() -> None:
    scheduler = Scheduler(config())
    tokens = list(range(100, 130))
    whole = scheduler.prefix_hashes_for_tokens(tokens)
    assert whole == [digest.hex() for digest in prefix_digests(tokens, 4)]
    assert scheduler.prefix_hashes_for_tokens(tokens[:9]) == whole[:2]


def test_the_page_size_is_part_of_the_identity() -> None:
    tokens = list(range(9))
    of_4 = Scheduler(config(full(4))).prefix_hashes_for_tokens(tokens)
    of_8 = Scheduler(config(full(4), prefix_granularity=8)).prefix_hashes_for_tokens(tokens)
    assert not set(of_4) & set(of_8)


def test_a_page_key_is_the_prefix_page_and_the_offset_in_it() -> None:
    digests = prefix_digests(list(range(8)), 4)
    keys = page_keys(digests, 2)
    assert [split_key(key) for key in keys] == [
        (digests[0], 0),
        (digests[0], 1),
        (digests[1], 0),
        (digests[1], 1),
    ]
    assert page_keys(digests, 2, start=1) == keys[2:]


def test_block_hashes_are_64_bit_fnv_1a() -> None:
    def fnv(data: bytes) -> int:
        value = 14695981039346656037
        for byte in data:
            value = (value ^ byte) * 1099511628211 % 2**64
        return value

    words = struct.pack("<4I", 1, 2, 3, 4)
    root = fnv(b"\0" + struct.pack("<Q", 4) + words)
    assert block_hash(None, words) == root
    assert block_hash(root, words) == fnv(b"\1" + struct.pack("<QQ", root, 4) + words)
    assert block_hashes([1, 2, 3, 4, 1, 2, 3, 4], 4) == [root, block_hash(root, words)]


def test_fnv_of_nothing_but_the_root_marker_is_the_published_value() -> None:
    """FNV-1a of nine zero bytes (no parent, no tokens), as any other implementation gives it."""
    expected = 0xCBF29CE484222325
    for _ in range(9):
        expected = expected * 0x100000001B3 % 2**64
    assert block_hash(None, b"") == expected


class Index:
    def __init__(self) -> None:
        self.pool = BlockPool(4, [1])
        self.index = device_index(self.pool, [True])
        self.pages = self.pool.take(0, 4)

    def publish(
        self, page: int, slot: int = 3, kind: BoundaryKind = BoundaryKind.CHUNK, epoch: int = 5
    ) -> int:
        return self.index.register(0, b"key", page, slot, kind, epoch)

    def facts(self, page: int) -> tuple[int, int, int]:
        index = self.index
        return index.epoch[0][page], index.slot[0][page], index.kind[0][page]


def test_a_second_page_under_a_known_key_gives_way_to_the_first() -> None:
    index = Index()
    assert index.publish(1) == 1
    assert index.publish(2) == 1
    assert index.index.pages[0] == {b"key": 1}


def test_a_refresh_sets_the_epoch_even_to_a_lower_one() -> None:
    index = Index()
    index.publish(1, epoch=5)
    index.publish(1, epoch=2)
    assert index.facts(1)[0] == 2


def test_a_refresh_raises_the_kind_and_never_lowers_it() -> None:
    index = Index()
    index.publish(1, kind=BoundaryKind.ENDPOINT)
    index.publish(2, kind=BoundaryKind.CHUNK)
    assert index.facts(1)[2] == BoundaryKind.ENDPOINT
    index.publish(2, kind=BoundaryKind.PROMOTED)
    assert index.facts(1)[2] == BoundaryKind.PROMOTED


def test_the_slot_stays_that_of_the_first_registration() -> None:
    index = Index()
    index.publish(1, slot=3)
    index.publish(2, slot=8)
    assert index.facts(1)[1] == 3


def test_an_entry_is_acquired_once_an_admission_claims_it() -> None:
    index = Index()
    index.publish(1)
    assert not index.index.acquired[0][1]
    index.index.claim(0, 1, epoch=9)
    assert index.index.acquired[0][1]
    assert index.facts(1)[0] == 9
    assert index.pool.refs[0][1] == 2


def test_a_page_registered_anew_starts_unacquired() -> None:
    index = Index()
    index.publish(1)
    index.index.claim(0, 1, epoch=9)
    index.index.remove(0, 1)
    index.publish(1, kind=BoundaryKind.CHUNK)
    assert not index.index.acquired[0][1]


def keys_of(known: KnownKeys, upto: int = 12) -> list[int]:
    return [at for at in range(upto) if (0, bytes([at])) in known]


def key(at: int) -> tuple[int, bytes]:
    return 0, bytes([at])


def test_known_keys_push_out_the_oldest_beyond_their_bound() -> None:
    known = KnownKeys(3)
    for at in (1, 2, 3, 4):
        known.add(key(at))
    assert keys_of(known) == [2, 3, 4]


def test_a_known_key_that_comes_again_keeps_its_place() -> None:
    known = KnownKeys(3)
    for at in (1, 2, 3, 1, 4):
        known.add(key(at))
    assert keys_of(known) == [2, 3, 4]


def test_registering_keeps_at_most_the_bound_and_forgets_the_rest() -> None:
    known = KnownKeys(3)
    known.add(key(4))
    known.register([key(at) for at in (1, 2, 3, 4)])
    assert keys_of(known) == [1, 2, 3]


def test_registering_pushes_out_the_oldest_key_that_is_not_kept() -> None:
    known = KnownKeys(3)
    for at in (1, 2, 3):
        known.add(key(at))
    known.register([key(1), key(5)])
    assert keys_of(known) == [1, 3, 5]
    known.add(key(6))
    assert keys_of(known) == [3, 5, 6], "a key that was kept keeps its place too"


def test_registering_fills_room_before_it_pushes_out() -> None:
    known = KnownKeys(3)
    known.add(key(1))
    known.register([key(5), key(5), key(6)])
    assert keys_of(known) == [1, 5, 6]


def test_forgetting_ignores_what_is_unknown() -> None:
    known = KnownKeys(3)
    known.add(key(1))
    known.forget([key(1), key(9)])
    assert keys_of(known) == []
