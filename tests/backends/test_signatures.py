"""A row's signature is its token prefix and its group, and nothing else."""

import numpy as np

from kvplan.backends.signatures import FRESH, POISON, History, prefix_digests
from tests.support.hashing import prefix_digests as digests_by_the_letter


def test_requests_with_one_prefix_have_one_signature_for_it() -> None:
    one, other = History("r0", [5, 6, 7, 8]), History("r1", [5, 6, 7, 9])
    assert one.rows("full")[:3].tolist() == other.rows("full")[:3].tolist()
    assert one.rows("full")[3] != other.rows("full")[3]


def test_order_position_and_group_all_count() -> None:
    rows = [
        History("r0", tokens).rows(group)[-1]
        for tokens in ([1, 2], [2, 1], [1, 1, 2], [0, 1, 2], [1, 2, 0])
        for group in ("full", "sliding")
    ]
    assert len(set(map(int, rows))) == 10


def test_no_signature_is_what_memory_holds_by_itself() -> None:
    rows = History("r0", list(range(10_000))).rows("full")
    assert len(set(rows.tolist())) == 10_000
    assert not np.isin(rows, [FRESH, POISON]).any()


def test_candidates_are_told_apart_by_request() -> None:
    one, other = History("r0", [1]), History("r1", [1])
    assert one.draft != other.draft
    assert one.draft not in one.rows("full")


def test_keys_are_the_engine_s() -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    expected = [digest.hex() for digest in digests_by_the_letter(tokens, 4)]
    assert prefix_digests(tokens, 4) == expected
    assert len(expected) == 2
