from collections import Counter

import pytest

from kvplan.replay.accept import TABLE, from_mean, from_weights, parse_accept


def test_without_an_option_every_token_of_the_width_is_accepted_and_called_assumed() -> None:
    accept = parse_accept(None, 4)
    assert (accept.mean, accept.basis) == (4, "assumed")
    assert parse_accept(None, 1).mean == 1


@pytest.mark.parametrize("mean", [1.0, 1.7, 2.5, 3.999, 4.0])
def test_a_mean_is_met(mean: float) -> None:
    assert from_mean(mean, 4).mean == pytest.approx(mean, abs=1e-4)


def test_a_mean_accepts_each_draft_token_with_the_same_chance() -> None:
    counts = Counter(from_mean(1.75, 3).table)  # 1 + p + p² = 1.75: p = 0.5
    assert [round(counts[length] / TABLE, 4) for length in (1, 2, 3)] == [0.5, 0.25, 0.25]


def test_lengths_occur_as_often_as_their_shares_say() -> None:
    accept = parse_accept("1:0.2,2:0.5,4:0.3", 4)
    counts = Counter(accept.table)
    assert counts == {1: 13_107, 2: 32_768, 4: 19_661}
    assert accept.mean == pytest.approx(2.4, abs=1e-4)


def test_the_seed_decides_the_order_and_nothing_else() -> None:
    one, same, other = (from_weights({1: 0.5, 2: 0.5}, 2, seed) for seed in (7, 7, 8))
    assert one.table == same.table
    assert one.table != other.table
    assert Counter(one.table) == Counter(other.table)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5", "1 to 4"),
        ("0.5", "1 to 4"),
        ("nan", "'nan'"),
        ("inf", "'inf'"),
        ("many", "'many'"),
        ("", "''"),
        ("1:0.5,5:0.5", "1 to 4"),
        ("0:0.5,2:0.5", "1 to 4"),
        ("1:0.5,2:0.1", "add up to 0.6"),
        ("1:0.5,1:0.5", "twice"),
        ("1:1.5,2:-0.5", "share"),
        ("1:0.5,2", "'2'"),
        ("1:0.5,", "''"),
        ("x:1", "'x:1'"),
    ],
)
def test_a_bad_accept_length_is_one_sentence_that_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="accept length") as error:
        parse_accept(text, 4)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_but_one_token_is_accepted_without_speculation() -> None:
    assert parse_accept("1", 1).table == [1]
    with pytest.raises(ValueError, match="1 to 1"):
        parse_accept("2", 1)
