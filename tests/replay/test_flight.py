"""What was computed for a request, and what was computed twice."""

from kvplan.replay.flight import Flight


def flight(prompt: int = 100, output: int = 50) -> Flight:
    return Flight(0, "r0", prompt, output, 0)


def admit(one: Flight, hit: int, prefill_size: int) -> None:
    one.resident = True
    one.prefill_size = prefill_size
    one.hit(hit)


def test_what_is_not_found_in_cache_is_computed() -> None:
    one = flight()
    admit(one, 64, 100)
    one.prefill(64, 100)
    assert (one.from_cache, one.computed_prompt, one.computed_again) == (64, 36, 0)


def test_a_prompt_retracted_half_way_is_computed_again_up_to_where_it_was() -> None:
    one = flight()
    admit(one, 0, 100)
    one.prefill(0, 60)
    assert one.retracted() == 60
    admit(one, 0, 100)
    one.prefill(0, 80)
    one.prefill(80, 100)
    assert (one.computed_prompt, one.computed_again, one.from_cache) == (100, 60, 0)


def test_a_retracted_decode_computes_its_output_again_but_for_the_last_token() -> None:
    one = flight()
    admit(one, 0, 100)
    one.prefill(0, 100)
    one.generated = 11  # 110 tokens computed, the eleventh was only sampled
    assert one.retracted() == 110
    admit(one, 64, 111)
    one.prefill(64, 111)
    assert (one.computed_prompt, one.computed_again, one.computed_output) == (100, 46, 1)
    assert (one.from_cache, one.cache_again) == (0, 64)


def test_a_request_retracted_while_it_recovers_drops_only_its_window() -> None:
    one = flight()
    admit(one, 0, 100)
    one.prefill(0, 100)
    one.generated = 11
    one.retracted()
    admit(one, 0, 111)
    one.prefill(0, 104)
    assert one.retracted() == 104
    assert (one.retractions, one.computed_again, one.frontier) == (2, 104, 110)


def test_a_hit_past_what_was_computed_is_the_cache_s_merit() -> None:
    one = flight()
    admit(one, 0, 100)
    one.prefill(0, 32)
    one.retracted()
    admit(one, 64, 100)
    assert (one.cache_again, one.from_cache) == (32, 32)
    one.prefill(64, 100)
    assert one.computed_prompt + one.from_cache == 100
