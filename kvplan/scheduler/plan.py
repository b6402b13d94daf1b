"""What goes out: the plan of one round (engine.md §12).

Tables and token lists are made when they are first asked for, and are then what they were when the plan was
made: a batch keeps each table's list with its length then, and the sequences, which only grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.scheduler.events import Cache
from kvplan.scheduler.request import Request, TokenStore


class Batch:
    """One batch: a list entry a request, prefills first; lengths in tokens."""

    def __init__(self, group_ids: Sequence[str]) -> None:
        self._group_ids = group_ids
        self._extends = 0
        self._tokens: list[TokenStore] = []
        # By group, a row's list of slots and its length when the plan was made.
        self._tables: list[list[tuple[list[int], int]]] = [[] for _ in group_ids]
        self.request_ids: list[str] = []
        self.request_pool_indices: list[int] = []
        self.input_lengths: list[int] = []
        self.prefill_lengths: list[int] = []
        self.extend_prefix_lens: list[int] = []
        self.extend_replay_lens: list[int] = []
        self.decode_input_ids: list[int] = []
        self.spec_candidate_ids: list[list[int]] = []

    def add_extend(self, request: Request, prefix: int, replay: int, length: int) -> None:
        """Add a prefill: ``prefix`` tokens are in front of its ``length`` inputs, ``replay`` of them re-fed."""
        self._add(request, length)
        self._extends += 1
        self.extend_prefix_lens.append(prefix)
        self.extend_replay_lens.append(replay)

    def add_decodes(self, requests: Sequence[Request], length: int, input_ids: list[int]) -> None:
        """Add decode steps of ``length`` inputs each."""
        self._tokens += [request.tokens for request in requests]
        for group, rows in enumerate(self._tables):
            tables = [request.tables[group] for request in requests]
            rows += [(table.pages, len(table.pages)) for table in tables]
        self.request_ids += [request.id for request in requests]
        self.request_pool_indices += [request.pool_slot for request in requests]
        self.input_lengths += [length] * len(requests)
        self.prefill_lengths += [request.prefill_size for request in requests]
        self.decode_input_ids += input_ids
        self.spec_candidate_ids += [request.spec_candidates for request in requests]

    def _add(self, request: Request, length: int) -> None:
        self._tokens.append(request.tokens)
        for rows, table in zip(self._tables, request.tables, strict=True):
            rows.append((table.pages, len(table.pages)))
        self.request_ids.append(request.id)
        self.request_pool_indices.append(request.pool_slot)
        self.input_lengths.append(length)
        self.prefill_lengths.append(request.prefill_size)

    def num_extends(self) -> int:
        """How many of the requests are prefills."""
        return self._extends

    @cached_property
    def input_ids(self) -> list[int]:
        """The prefills' input tokens, concatenated."""
        ids: list[int] = []
        for tokens, begin, length in zip(
            self._tokens, self.extend_prefix_lens, self.input_lengths, strict=False
        ):
            ids += tokens.slice(begin, begin + length)
        return ids

    @cached_property
    def shifted_input_ids(self) -> list[int]:
        """The prompts' tokens one further than the inputs, −1 past a prompt's end."""
        ids: list[int] = []
        for at, begin in enumerate(self.extend_prefix_lens):
            end = begin + self.input_lengths[at] + 1
            prompt = self.prefill_lengths[at]
            ids += self._tokens[at].slice(begin + 1, min(end, prompt))
            ids += [-1] * (end - max(prompt, begin + 1))
        return ids

    @cached_property
    def block_tables(self) -> dict[str, list[list[int]]]:
        """Per group a row of pages a request, 0 for null, padded with −1 to the longest."""
        tables: dict[str, list[list[int]]] = {}
        for group, group_id in enumerate(self._group_ids):
            rows = [pages[:length] for pages, length in self._tables[group]]
            width = max(map(len, rows), default=0)
            tables[group_id] = [row + [-1] * (width - len(row)) for row in rows]
        return tables

    def block_tables_arrays(self) -> dict[str, NDArray[np.int32]]:
        """``block_tables`` as arrays of shape (requests, pages)."""
        return {
            group: np.array(rows, np.int32).reshape(len(rows), len(rows[0]) if rows else 0)
            for group, rows in self.block_tables.items()
        }


_Batch = Batch  # inside Forward the name is taken by the engine's own ``Forward.Batch``


class Forward:
    """Names of what a forward takes."""

    Batch: TypeAlias = _Batch


class ExecutionPlan:
    """One round's plan."""

    def __init__(self) -> None:
        self.forward: list[Batch] = []
        self.remote_prefill: Batch | None = None
        self.remote_decode: Batch | None = None
        self.cache: list[Cache.WriteBackOp | Cache.LoadBackOp] = []
        self.pages_to_zero: dict[str, list[int]] = {}

    def pages_to_zero_arrays(self) -> dict[str, NDArray[np.int32]]:
        """``pages_to_zero`` as one-dimensional arrays."""
        return {group: np.array(pages, np.int32) for group, pages in self.pages_to_zero.items()}

    def __repr__(self) -> str:
        sizes: dict[str, Any] = {
            "forward": [len(batch.request_ids) for batch in self.forward],
            "remote_prefill": self.remote_prefill and self.remote_prefill.request_ids,
            "remote_decode": self.remote_decode and self.remote_decode.request_ids,
            "cache": len(self.cache),
        }
        return f"ExecutionPlan({', '.join(f'{name}={value}' for name, value in sizes.items())})"
