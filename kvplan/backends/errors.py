"""What a backend says when it cannot run, and when a plan is not safe."""

from __future__ import annotations

from dataclasses import dataclass


class BackendError(ValueError):
    """One sentence: what is not there (torch, a device, memory), and what would be right."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the cache: a group's page in a tier ("device" or "host"); 0 is the null page."""

    group: str
    page: int
    tier: str = "device"

    def __str__(self) -> str:
        tier = "host " if self.tier == "host" else ""
        return f"{tier}page {self.page} of {self.group}"


class Violation(Exception):
    """A plan that is not safe to carry out.

    ``round`` counts the plans carried out, from 0; ``request_id`` is the request whose history is hurt;
    ``place`` the page; ``what`` says in words what was expected and found; ``writer`` who wrote the page last.
    """

    def __init__(self, round_index: int, request_id: str, place: Place, what: str, writer: str) -> None:
        self.round = round_index
        self.request_id = request_id
        self.place = place
        self.what = what
        self.writer = writer
        super().__init__(
            f"round {round_index}, request {request_id}, {place}: {what}; last written by {writer}"
        )

    @property
    def group(self) -> str:
        """The group's id."""
        return self.place.group

    @property
    def page(self) -> int:
        """The page's id in its group."""
        return self.place.page
