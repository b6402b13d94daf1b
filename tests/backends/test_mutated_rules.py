"""Schedulers and runtimes with one wrong rule, on every role: acks too early, windows too short, pages that nobody
has computed."""

from random import Random
from typing import Any

import pytest

from tests.support.scenarios import ROLES, TIERS, scenario_of

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

from kvplan.backends.errors import Violation
from kvplan.scheduler import ExecutionPlan
from tests.backends.carrying import CarriedRun
from tests.backends.small import group, play, request, scenario
from tests.backends.test_late_copies import short_landing
from tests.backends.test_violations import EarlyAcks, ShortWindow, Uncomputed


def caught(run: type[CarriedRun], role: str, tier: str, seeds: int = 40) -> list[Violation]:
    """The violations of random scenarios; those that the wrong rule makes no configuration of are left out."""
    found = []
    for seed in range(seeds):
        one = scenario_of(Random(f"{role} {tier} {seed}"), role, tier)
        try:
            for _ in run(one).rounds():
                pass
        except Violation as error:
            if not short_landing(error, one):
                found.append(error)
        except ValueError as error:
            if "sliding_window_tokens is" not in str(error):  # no window is left
                raise
    return found


@pytest.mark.parametrize("role", ROLES)
def test_acks_before_their_copies(role: str) -> None:
    found = caught(EarlyAcks, role, "host")
    assert found
    for error in found:
        assert "before store " in error.what or "store " in error.what
        assert error.page > 0


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("role", ROLES)
def test_windows_reclaimed_a_page_early(role: str, tier: str) -> None:
    found = caught(ShortWindow, role, tier)
    assert len(found) > 5
    early = [error for error in found if "of its table is null, but it " in error.what]
    assert len(early) >= 0.9 * len(found)  # the rest find what was written into the page since
    assert all("sliding" in error.group or "replay" in error.group for error in found)


def test_a_generated_page_published_on_a_decode_worker_that_nobody_has_computed() -> None:
    run = Uncomputed(scenario(request(0, (1, 0, 14), output=2), request(1, (2, 0, 3), submit=8), role="D"))
    with pytest.raises(Violation) as error:
        for _ in run.rounds():
            pass
    assert error.value.request_id == "r1"
    assert "reads its own position 15 and finds zeros, which nobody has computed" in str(error.value)


@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.parametrize("role", ROLES)
def test_a_forward_that_did_not_run_and_whose_results_came(role: str, tier: str) -> None:
    """Its pages are published as if they were computed."""
    settings: dict[str, Any] = {"role": role} | ({"num_host_pages": 65} if tier == "host" else {})
    one = scenario(
        request(0, (1, 0, 30), output=8),
        request(1, (1, 0, 28), (2, 0, 6), output=8, submit=9),
        groups=("full", group("sliding")),
        max_scheduled_tokens=16,
        **settings,
    )
    play(one)
    rounds = iter(range(1000))

    def skip(plan: ExecutionPlan, run: CarriedRun) -> None:
        backend: Any = run.backend
        if plan.forward and next(rounds) == 0:
            forward = backend._forward.run
            backend._forward.run = lambda jobs: setattr(backend._forward, "run", forward)

    with pytest.raises(Violation) as error:
        play(one, skip)
    assert "and finds zeros, which nobody has computed" in str(error.value) or (
        "it holds zeros, which nobody has computed" in str(error.value)
    )
    assert error.value.request_id == "r0"
    # A decode worker's prompt came from the peer: what did not run is a decode, in a page that a later one is in.
    assert "last written by " + ("the forward of r0" if role == "D" else "zeroing") in str(error.value)
