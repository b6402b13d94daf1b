"""How a prefill chunk is cut (engine.md §8)."""

import pytest

from kvplan.scheduler.chunks import ChunkRules, align, chunk_tokens, keep_final_window


@pytest.mark.parametrize(
    ("first", "unscheduled", "budget", "promotion", "expected"),
    [
        pytest.param(0, 100, 100, 0, 100, id="a chunk that completes the prompt is exempt"),
        pytest.param(0, 100, 80, 0, 64, id="rounded down to a page"),
        pytest.param(0, 200, 150, 0, 128, id="rounded down to the last page that fits"),
        pytest.param(0, 100, 63, 0, 0, id="less than a page is nothing"),
        pytest.param(0, 100, 64, 0, 64, id="exactly a page"),
        pytest.param(10, 100, 60, 0, 54, id="from inside a page to its end"),
        pytest.param(10, 100, 54, 0, 54, id="a budget that just covers the rest of the page"),
        pytest.param(10, 100, 53, 0, 0, id="a budget that does not cover it"),
        pytest.param(10, 200, 190, 0, 54, id="from inside a page no further than its end"),
        pytest.param(0, 300, 300, 128, 128, id="stops at a promotion boundary"),
        pytest.param(64, 300, 300, 128, 64, id="stops at a promotion boundary further on"),
        pytest.param(128, 300, 300, 128, 300, id="a promotion boundary reached counts no more"),
        pytest.param(0, 128, 300, 128, 128, id="a promotion boundary at the prompt's end"),
        pytest.param(0, 100, 200, 256, 100, id="a promotion boundary beyond the prompt"),
        pytest.param(0, 300, 100, 128, 64, id="the budget ends before the promotion boundary"),
    ],
)
def test_align(first: int, unscheduled: int, budget: int, promotion: int, expected: int) -> None:
    assert align(first, unscheduled, budget, 64, promotion) == expected


@pytest.mark.parametrize(
    ("tokens", "unscheduled", "window", "expected"),
    [
        pytest.param(60, 100, 0, 60, id="no replay window"),
        pytest.param(100, 100, 40, 100, id="nothing remains"),
        pytest.param(60, 100, 40, 60, id="exactly the window remains"),
        pytest.param(61, 100, 40, 60, id="one token too few would remain"),
        pytest.param(99, 100, 40, 60, id="one token would remain"),
        pytest.param(20, 30, 40, 0, id="the rest is shorter than the window"),
    ],
)
def test_keep_final_window(tokens: int, unscheduled: int, window: int, expected: int) -> None:
    assert keep_final_window(tokens, unscheduled, window) == expected


PLAIN = ChunkRules(64, 0, has_state=False)
STATE = ChunkRules(64, 0, has_state=True)
REPLAY = ChunkRules(8, 16, has_state=False)


@pytest.mark.parametrize(
    ("rules", "first", "hit", "unscheduled", "budget", "promotion", "expected"),
    [
        pytest.param(PLAIN, 0, False, 100, 80, 0, 80, id="without state nothing is aligned"),
        pytest.param(STATE, 0, False, 100, 80, 0, 64, id="a state group aligns"),
        pytest.param(PLAIN, 0, False, 300, 300, 128, 128, id="a promotion boundary aligns"),
        pytest.param(STATE, 0, False, 100, 60, 0, 0, id="an aligned chunk of nothing is no chunk"),
        pytest.param(PLAIN, 0, False, 100, 0, 0, 0, id="no budget, no chunk"),
        pytest.param(REPLAY, 64, True, 100, 40, 0, 24, id="a hit's first chunk pays for the window"),
        pytest.param(REPLAY, 8, True, 100, 40, 0, 32, id="a hit shorter than the window pays for the hit"),
        pytest.param(REPLAY, 64, False, 100, 40, 0, 40, id="a later chunk pays nothing"),
        pytest.param(REPLAY, 64, True, 100, 16, 0, 0, id="a budget that the window uses up"),
        pytest.param(REPLAY, 64, True, 100, 17, 0, 1, id="a budget with one token beyond the window"),
        pytest.param(REPLAY, 0, False, 50, 40, 0, 34, id="the final window is kept whole"),
        pytest.param(REPLAY, 0, False, 30, 40, 16, 14, id="kept whole behind a promotion boundary too"),
        pytest.param(REPLAY, 0, False, 16, 40, 8, 16, id="a boundary inside the final window yields"),
        pytest.param(REPLAY, 0, False, 12, 10, 0, 0, id="a final window that the budget does not cover"),
        pytest.param(
            REPLAY, 0, False, 12, 10, 8, 0, id="nor does it when a boundary had shortened the chunk"
        ),
    ],
)
def test_chunk_tokens(
    rules: ChunkRules, first: int, hit: bool, unscheduled: int, budget: int, promotion: int, expected: int
) -> None:
    assert chunk_tokens(rules, first, hit, unscheduled, budget, promotion) == expected


def test_one_forward_takes_a_tail_behind_the_last_checkpoint() -> None:
    """The design note's example: 50,432 tokens hit, 868 to go, pages of 128."""
    rules = ChunkRules(128, 0, has_state=True)
    assert chunk_tokens(rules, 50_432, True, 868, 8_192, 0) == 868
    assert chunk_tokens(rules, 50_432, True, 868, 800, 0) == 768


@pytest.mark.parametrize(
    ("rules", "reserve"),
    [
        pytest.param(PLAIN, 0, id="dense groups need no smallest chunk"),
        pytest.param(STATE, 64, id="a state group needs a page"),
        pytest.param(REPLAY, 32, id="a window of 16 over pages of 8"),
        pytest.param(ChunkRules(32, 16, has_state=False), 48, id="a window of 16 over pages of 32"),
    ],
)
def test_budget_left_for_a_pending_prefill(rules: ChunkRules, reserve: int) -> None:
    assert rules.prefill_reserve == reserve
