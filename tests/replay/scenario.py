"""Scenarios of the engine's recordings, played by the replay's own loop."""

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.arrivals import Arrivals
from kvplan.replay.engine import Engine
from kvplan.replay.step_time import NS, unit_rounds
from kvplan.replay.transfers import Link, TransferTimes
from kvplan.replay.workload import UNBOUNDED, Workload
from kvplan.scheduler import Scheduler
from tests.support.scenario import TIMING, Scenario, config_of, prompt_tokens, sampled_token


def workload_of(scenario: Scenario) -> Workload:
    """The scenario's requests; a round is a second."""
    requests = scenario["requests"]
    prompts = [prompt_tokens(request["prompt"]) for request in requests]
    outputs = [request["output"] for request in requests]
    return Workload(
        request_ids=[request["id"] for request in requests],
        prompt_tokens=[len(prompt) for prompt in prompts],
        output_tokens=outputs,
        budgets=[request.get("max_new_tokens", 0) for request in requests],
        arrivals_ns=[request.get("submit", 0) * NS for request in requests],
        delays_ns=[None] * len(requests),
        after=[None] * len(requests),
        prompt=lambda row: prompts[row],
        output=lambda row: [sampled_token(row, index) for index in range(outputs[row])],
        prefix_bounds=[request.get("max_cached_prefix_tokens", UNBOUNDED) for request in requests],
    )


def engine_of(scenario: Scenario) -> tuple[Engine, Arrivals]:
    """The scenario's engine in lockstep, with invariants checked, and its arrivals."""
    config = config_of(scenario["config"])
    workload = workload_of(scenario)
    timing = TIMING | scenario.get("timing", {})
    engine = Engine(
        scheduler=Scheduler(config, check=True),
        workload=workload,
        step_time=unit_rounds(),
        accept=AcceptLengths(scenario.get("accept", [1]), 1, "recorded"),
        decode_width=config.decode_input_tokens,
        overlap=timing["result"],
        update_reserve=bool(scenario.get("update_reserve")),
        transfer_times=TransferTimes(
            Link(latency_ns=timing["write_back"] * NS), Link(latency_ns=timing["load_back"] * NS)
        ),
    )
    return engine, Arrivals(workload)


def playable(scenario: Scenario) -> bool:
    """Whether a scenario has nothing in it but what a replay does."""
    extra = ("aborts", "failing_loads", "storage", "clears", "extras")
    return scenario["config"].get("role", "Fused") == "Fused" and not any(scenario.get(key) for key in extra)


def on_device_only(scenario: Scenario) -> bool:
    """Whether it has no host tier."""
    return int(scenario["config"].get("num_host_pages", 0)) <= 1
