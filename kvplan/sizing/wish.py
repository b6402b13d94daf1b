"""What a pool is sized for: how many requests at once, of what length."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.scheduler.capacity import MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Wish:
    """``max_batch_size`` live requests, none longer than ``max_context_len`` tokens (prompt + generation).

    ``max_total_tokens`` is what they hold together; None stands for batch × context.
    """

    max_batch_size: int
    max_context_len: int
    max_total_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens of all live requests together."""
        if self.max_total_tokens is None:
            return self.max_batch_size * self.max_context_len
        return self.max_total_tokens

    @property
    def is_one_request(self) -> bool:
        """Whether this is a single request and no more tokens than its own."""
        return self.max_batch_size == 1 and self.total_tokens <= self.max_context_len

    def validate(self) -> None:
        """Raise ``ValueError`` naming the first figure that is out of range."""
        for name, value in (
            ("max_batch_size", self.max_batch_size),
            ("max_context_len", self.max_context_len),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is needed")
        if self.max_context_len > MAX_TOKENS:
            raise ValueError(f"max_context_len is {self.max_context_len}; at most {MAX_TOKENS} is possible")
        total = self.max_total_tokens
        if total is not None and total < self.max_context_len:
            raise ValueError(
                f"max_total_tokens is {total}, below max_context_len ({self.max_context_len}); one request "
                "would already hold more tokens than all together"
            )
        most = self.max_batch_size * MAX_TOKENS
        if total is not None and total > most:
            raise ValueError(
                f"max_total_tokens is {total}; at most {most} is possible ({self.max_batch_size} requests of "
                f"{MAX_TOKENS})"
            )

    def with_batch(self, requests: int) -> Wish:
        """The same requests, ``requests`` of them; a given total is lowered to what they can hold."""
        return replace(self, max_batch_size=requests)._with_reachable_total()

    def with_context(self, tokens: int) -> Wish:
        """As many requests of ``tokens`` tokens; a given total is lowered to what they can hold."""
        return replace(self, max_context_len=tokens)._with_reachable_total()

    def _with_reachable_total(self) -> Wish:
        if self.max_total_tokens is None:
            return self
        reachable = self.max_batch_size * self.max_context_len
        return replace(self, max_total_tokens=min(self.max_total_tokens, reachable))
