"""A gap in the engine's own rules, shown (engine.md §8): a remote landing behind a hit counts the hit for a
replayable group too, which has no part in hits."""

import pytest

from kvplan.backends.errors import Violation
from tests.backends.small import group, play, request, scenario

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")


def landing(prompt: int) -> None:
    """Decode worker: r1 shares 16 of its ``prompt`` tokens with r0; the window is 8."""
    play(
        scenario(
            request(0, (1, 0, 20)),
            request(1, (1, 0, 16), (2, 0, prompt - 16), submit=10),
            groups=("full", group("replay", sliding_window_tokens=8)),
            role="D",
        )
    )


def test_a_landing_whose_window_begins_behind_the_hit_is_whole() -> None:
    landing(23)  # the first decode step reads back to 23 − 7 = 16


def test_a_landing_whose_window_reaches_below_the_hit_lacks_rows() -> None:
    with pytest.raises(Violation) as caught:
        landing(22)
    error = caught.value
    assert (error.request_id, error.group) == ("r1", "replay")
    assert "slot 3 of its table is null, but it reads position 15 there" in str(error)
