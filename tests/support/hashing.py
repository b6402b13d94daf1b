"""Prefix and block hashes by the letter of the specification, without the scheduler's code."""

from collections.abc import Sequence
from hashlib import sha256
from struct import pack


def prefix_digests(tokens: Sequence[int], page: int) -> list[bytes]:
    """SHA-256 of every whole prefix page: prior length, prior, page size, tokens, all little-endian u32."""
    digests: list[bytes] = []
    prior = b""
    for start in range(0, len(tokens) - page + 1, page):
        words = tokens[start : start + page]
        data = pack("<I", len(prior)) + prior + pack("<I", page) + pack(f"<{page}I", *words)
        prior = sha256(data).digest()
        digests.append(prior)
    return digests


def block_hashes(tokens: Sequence[int], page: int) -> list[int]:
    """64-bit FNV-1a of every whole prefix page: has a parent, the parent, the token count, the tokens."""
    hashes: list[int] = []
    for start in range(0, len(tokens) - page + 1, page):
        data = pack("<BQ", 1, hashes[-1]) if hashes else b"\0"
        data += pack("<Q", page) + pack(f"<{page}I", *tokens[start : start + page])
        value = 0xCBF29CE484222325
        for byte in data:
            value = (value ^ byte) * 0x100000001B3 % 2**64
        hashes.append(value)
    return hashes
