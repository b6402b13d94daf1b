"""Who listens to admissions: told whom evictions make way for and what was hit, and part of no decision.

A journal makes every attempt tell of itself, which takes time; a listener hears of those that succeed.
"""

from __future__ import annotations

from typing import Protocol

from kvplan.scheduler.cache.coordinator import MatchSteps, Probe
from kvplan.scheduler.plan import ExecutionPlan
from kvplan.scheduler.request import Request


class Listener(Protocol):
    """Something that a scheduler tells of its admissions while it plans."""

    def serves(self, request: Request | None) -> None:
        """From now on pages make way for this request; ``None``: for nobody any more."""

    def admitted(self, request: Request, probe: Probe, steps: MatchSteps, limit: int, rule: str) -> None:
        """A first chunk was admitted with this hit, of at most ``limit`` prefix pages because of ``rule``."""

    def planned(self, plan: ExecutionPlan) -> None:
        """The round's plan is made."""
