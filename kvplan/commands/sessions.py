"""The options of ``replay-trace`` for commands that play a trace themselves.

Imports nothing heavy before a command runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from kvplan.commands.model_options import ModelFlags
from kvplan.commands.options import given_flags
from kvplan.commands.replay_trace import replay_trace

if TYPE_CHECKING:
    from kvplan.replay.session import Session
    from kvplan.replay.worker_inputs import WorkerInputs

_LEFT_OUT = {
    "emit",
    "list_gpus",
    "list_models",
    "trace",
    "output",
    "force",
    "format",
    "max_rounds",
    "backend",
    "device",
    "scale_down",
}


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the options by which ``replay-trace`` is told of a trace and a deployment.

    They come to it as its last parameter, ``replayed: dict[str, Any]``, made for ``session_of``.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [p for name, p in signature.parameters.items() if name != "replayed"]
    taken = {p.name for p in own} | _LEFT_OUT
    theirs = [p for p in inspect.signature(replay_trace).parameters.values() if p.name not in taken]

    @wraps(command)
    def with_session(**given: Any) -> Any:
        replayed = {p.name: given.pop(p.name) for p in theirs}
        return command(**given, replayed=replayed)

    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *theirs]
    with_session.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_session.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_session


def given_of(replayed: dict[str, Any]) -> list[str]:
    """The options among ``replayed`` that were given, as flags."""
    defaults = inspect.signature(replay_trace).parameters
    return [
        "--" + name.replace("_", "-") for name, value in replayed.items() if value != defaults[name].default
    ]


def session_of(traces: list[str], replayed: dict[str, Any]) -> Session | WorkerInputs:
    """What ``replay-trace`` would play with these options: a session, or a replay through workers.

    Raises ``ValueError``.
    """
    from kvplan.commands.replay_trace import _deployment, step_time_of
    from kvplan.commands.workers import TierFlags, WorkerFlags, inputs_of, storage_of
    from kvplan.replay.accept import parse_accept
    from kvplan.replay.session import begin
    from kvplan.replay.workload import parse_budget
    from kvplan.traces import read_trace

    own = set(inspect.signature(inspect.unwrap(replay_trace)).parameters)
    rest = dict(replayed)
    model = ModelFlags(
        ModelFlags.taken_from(rest).given
    )  # the deployment was written when it was first asked for
    options = {name: value for name, value in rest.items() if name in own}
    overrides = given_flags({name: value for name, value in rest.items() if name not in own})
    times = ("step_fixed", "step_prefill_token", "step_decode", "step_context_token")
    step_time = step_time_of(
        options["rounds"], {"--" + name.replace("_", "-"): options[name] for name in times}
    )
    loaded = _deployment(options["deployment"], overrides, model)
    tiers = TierFlags(
        options["write_back_gbps"],
        options["load_back_gbps"],
        options["write_back_latency"],
        options["load_back_latency"],
        options["device_costs"],
    )
    budget = parse_budget(options["max_new_tokens"])
    accept = parse_accept(options["accept_length"], loaded.config.decode_input_tokens, options["seed"])
    reading = (
        "time_unit",
        "hash_tokens",
        "sort",
        "skip_bad_rows",
        "zero_output",
        "limit",
        "start",
    )
    trace = read_trace(traces, format=options["trace_format"], **{name: options[name] for name in reading})
    storage = storage_of(options["storage"], options["storage_failure_rate"], options["seed"])
    peers = WorkerFlags(
        options["prefill_workers"],
        options["decode_workers"],
        options["routing"],
        options["transfer_gbps"],
        options["transfer_latency"],
        options["prefill_deployment"],
    )
    counts = peers.workers(loaded.config.role)
    if counts is not None:
        return inputs_of(
            trace,
            loaded,
            counts,
            peers,
            budget=budget,
            step_time=step_time,
            accept=accept,
            transfer_times=tiers.transfer_times(loaded),
            speed=options["speed"],
            concurrency=options["concurrency"],
            max_rounds=None,
            force_retract_every=options["force_retract_every"],
            storage=storage,
        )
    return begin(
        trace,
        loaded.config,
        deployment="" if options["deployment"] is None else str(options["deployment"]),
        step_time=step_time,
        accept=accept,
        max_new_tokens=budget,
        speed=options["speed"],
        concurrency=options["concurrency"],
        seed=options["seed"],
        transfer_times=tiers.transfer_times(loaded),
        storage=storage,
        force_retract_every=options["force_retract_every"],
        check=options["check"],
    )
