"""What the requests of a replay turn out to be: the trace's own tokens, and the accepted lengths assumed."""

from __future__ import annotations

import numpy as np

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.workload import Workload


class WorkloadScript:
    """The script of a workload."""

    def __init__(self, workload: Workload, accept: AcceptLengths) -> None:
        self._workload = workload
        self._accept = accept
        self._rows = {request_id: row for row, request_id in enumerate(workload.request_ids)}

    def tokens(self, request_id: str) -> list[int]:
        """The prompt and every token that the request generates."""
        row = self._rows[request_id]
        tokens: list[int] = np.asarray(self._workload.prompt(row)).tolist()
        return tokens + list(self._workload.output(row))

    def accepted(self, request_id: str, step: int) -> int:
        """How many tokens a decode step accepts."""
        accept = self._accept
        return accept.table[(self._rows[request_id] * accept.stride + step) % len(accept.table)]
