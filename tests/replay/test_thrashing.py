from kvplan.replay.rounds import Round, RoundLog
from kvplan.replay.thrashing import thrashing


def log(*rounds: tuple[int, int, int]) -> RoundLog:
    """Rounds of 10 ms by (prefill tokens, of them recomputed, retractions), one token generated in each."""
    made = RoundLog()
    for i, (prefill, again, retractions) in enumerate(rounds):
        made.append(Round(i, i * 10**7, 10**7, 1, prefill, again, 0, 1, 0, 0, 0, 0, 0, retractions))
    return made


def test_a_stretch_of_mostly_rework_is_found_with_its_ends() -> None:
    found = thrashing(log(*[(100, 0, 0)] * 50, *[(100, 80, 1)] * 30, *[(100, 10, 0)] * 50))
    assert found is not None
    assert (found.first_round, found.last_round) == (50, 79)
    assert (found.start_s, found.end_s) == (0.5, 0.8)
    assert (found.retractions, found.prefill_tokens, found.recomputed_tokens) == (30, 3_000, 2_400)
    assert (found.recomputed_share, found.generated_tokens) == (0.8, 30)


def test_rounds_without_prefill_do_not_part_a_stretch() -> None:
    found = thrashing(log(*[(100, 90, 1), (0, 0, 0), (0, 0, 0)] * 25))
    assert found is not None
    assert found.retractions == 25


def test_a_few_retractions_are_no_trouble() -> None:
    assert thrashing(log(*[(100, 100, 1)] * 19)) is None
    assert thrashing(log(*[(100, 100, 1)] * 20)) is not None


def test_rework_that_is_less_than_half_is_no_trouble() -> None:
    assert thrashing(log(*[(100, 45, 1)] * 100)) is None


def test_nothing_played_is_no_trouble() -> None:
    assert thrashing(log()) is None
