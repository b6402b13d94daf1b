"""A batch that a pool was sized for, played."""

from dataclasses import replace
from typing import Any

import pytest

from kvplan.replay.proof import prove
from kvplan.reports.proof import proof_text
from kvplan.scheduler import SchedulerConfig
from tests.replay.small import config
from tests.test_sure_pool import STARVED, demand, with_pool


def test_all_finish_in_the_pool_of_their_demand() -> None:
    made = config(64, page=16, chunk=64, batch=8)
    blocks = demand(made, 100)
    assert blocks == 8 * 100 // 16 + 8
    found = prove(with_pool(made, blocks), 100)
    assert found.holds
    assert (found.finished, found.retractions, found.waited) == (8, 0, 0)
    assert (found.prompt_tokens, found.output_tokens) == (50, 50)
    assert found.most_at_once == 8
    assert found.usable_blocks == blocks


def test_a_pool_for_fewer_lets_the_others_wait() -> None:
    # Each needs ceil(100 / 16) = 7 pages; of 21 three run at once, in groups after one another.
    found = prove(config(21, page=16, chunk=64, batch=8), 100, 20)
    assert found.holds
    assert found.most_at_once == 3
    assert (found.waited, found.longest_wait_rounds) == (None, None)  # they have to wait, and for long
    assert 20 < found.last_start_round < found.rounds
    assert f"the last begins in round {found.last_start_round}" in " ".join(proof_text(found).plain.split())


def test_requests_that_never_fit_are_not_played() -> None:
    found = prove(config(5, page=16, batch=2), 100, 20)
    assert not found.holds
    assert (found.finished, found.never_fit, found.rounds) == (0, 2, found.rounds)
    assert "they never fit" in " ".join(proof_text(found).plain.split())


def test_a_stall_says_who_waits_for_what() -> None:
    found = prove(with_pool(STARVED, demand(STARVED, 120)), 120, 16)
    assert not found.holds
    assert found.dead_end is not None
    assert found.dead_end.kind == "stall"
    assert (found.finished, found.waited) == (0, 1)
    said = " ".join(proof_text(found, 100).plain.split())
    assert "0 of 5 finish, the others never do, no retraction" in said
    assert "r4: Prefilling: not now, its next 8 tokens need" in said


def test_declared_budgets_of_a_speculative_step_hold() -> None:
    made = replace(config(64, page=16, chunk=64, batch=4), decode_input_tokens=4, overlap_schedule_depth=1)
    found = prove(with_pool(made, demand(made, 90)), 90, 33)
    assert found.holds
    assert found.finished == 4


@pytest.mark.parametrize(
    ("changes", "context", "output", "said"),
    [
        ({}, 100, 100, "output_tokens is 100; 1"),
        ({"decode_input_tokens": 4}, 100, 3, "output_tokens is 3; 4"),
        ({"role": SchedulerConfig.Role.P}, 100, 3, "role P"),
        ({"max_batch_size": 1_000_000}, 100, 3, "1000000 prompts of 97 tokens are too many"),
        ({"num_device_pages": 30_000_000}, 100, 3, "30000000 LCM blocks; at most"),
    ],
)
def test_what_cannot_be_played_is_refused(
    changes: dict[str, Any], context: int, output: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        prove(replace(config(), **changes), context, output)
