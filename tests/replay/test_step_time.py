import pytest

from kvplan.replay.step_time import StepTime, nanoseconds, parse_moment, parse_seconds, unit_rounds


def test_a_step_is_the_sum_of_its_parts() -> None:
    step = StepTime(0.010, 35e-6, 20e-6, 1e-9)
    assert step.ns(1_000, 0) == 45_000_000
    assert step.ns(0, 100) == 12_000_000
    assert step.ns(1_000, 100, 5_000) == 47_005_000


def test_in_lockstep_every_round_takes_one_unit() -> None:
    step = unit_rounds()
    assert step.lockstep
    assert step.ns(8_192, 256, 1_000_000) == step.ns(0, 0) == 1_000_000_000


def test_seconds_keep_every_digit_of_a_nanosecond() -> None:
    assert nanoseconds(0.9799600) == 979_960_000
    assert nanoseconds(3_537.000000001) == 3_537_000_000_001


@pytest.mark.parametrize(
    ("field", "value"), [("fixed_s", -0.1), ("per_prefill_token_s", float("nan")), ("fixed_s", float("inf"))]
)
def test_a_time_that_is_no_time_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        StepTime(**{field: value})  # type: ignore[arg-type]


def test_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="takes no time"):
        StepTime(fixed_s=0, per_decode_request_s=0)
    assert StepTime(fixed_s=0).shortest_ns == 20_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0.01", 0.01),
        ("10ms", 0.01),
        ("35us", 35e-6),
        ("35 µs", 35e-6),
        ("1.5s", 1.5),
        ("5e-6", 5e-6),
        ("0", 0),
    ],
)
def test_times_are_read_with_and_without_a_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--step-fixed") == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 m 30 s", 630),
        ("10m30s", 630),
        ("1 h 02 m", 3_720),
        ("2 d 03 h", 183_600),
        ("12.5s", 12.5),
        ("1 m 0.5 s", 60.5),
        ("12.5", 12.5),
        ("10ms", 0.01),
    ],
)
def test_moments_are_read_as_they_are_printed(text: str, seconds: float) -> None:
    assert parse_moment(text, "--at") == seconds


@pytest.mark.parametrize("text", ["", "30 s 10 m", "-1 m", "5 min"])
def test_what_is_no_moment_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="--at"):
        parse_moment(text, "--at")


@pytest.mark.parametrize("text", ["", "ten", "10 min", "-1ms", "1.2.3", "nan"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="--step-fixed"):
        parse_seconds(text, "--step-fixed")
