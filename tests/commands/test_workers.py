"""`kvplan replay-trace` through prefill and decode workers, and with host and storage tiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvplan import cli
from kvplan.backends.errors import Place, Violation
from kvplan.commands import errors

EXAMPLES = Path(__file__).parents[2] / "examples"
TRACE = str(EXAMPLES / "traces" / "shared_prefixes.jsonl")
DENSE = str(EXAMPLES / "dense_gqa.toml")
STATE = str(EXAMPLES / "hybrid_state.toml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    words = ("replay-trace", TRACE, *arguments)
    status = errors.run(lambda given: cli.app(given, standalone_mode=False), words)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, out, err = run(capsys, *arguments, "--format", "json")
    assert status == 0, err
    loaded: dict[str, Any] = json.loads(out)
    return loaded


@pytest.mark.parametrize("deployment", [DENSE, STATE])
def test_workers_generate_what_the_fused_engine_generates(
    capsys: pytest.CaptureFixture[str], deployment: str
) -> None:
    fused = facts(capsys, "-d", deployment, "--limit", "60")
    split = facts(
        capsys,
        "-d",
        deployment,
        "--limit",
        "60",
        "--prefill-workers",
        "2",
        "--decode-workers",
        "2",
        "--check",
    )
    assert split["generated_tokens"] == fused["figures"]["tokens"]["generated"]
    assert split["finished"] == fused["figures"]["requests"]["finished"] == 60
    assert split["hand_off"]["count"] == 60
    assert [worker["name"] for worker in split["workers"]] == [
        "prefill 0",
        "prefill 1",
        "decode 0",
        "decode 1",
    ]


def test_a_slow_link_shows_in_the_first_token_and_in_the_queue(capsys: pytest.CaptureFixture[str]) -> None:
    quick = facts(capsys, "-d", DENSE, "--limit", "40", "--decode-workers", "1")
    slow = facts(capsys, "-d", DENSE, "--limit", "40", "--decode-workers", "1", "--transfer-gbps", "0.5")
    assert quick["hand_off"]["transfer_s"]["p99"] == 0
    assert slow["hand_off"]["queue_s"]["p99"] > 0
    assert slow["first_token_s"]["p50"] > quick["first_token_s"]["p50"]
    # A page of 8 MiB: what went over at 0.5 GB/s.
    assert slow["hand_off"]["bytes"] == slow["hand_off"]["pages"] * 8 * 2**20


@pytest.mark.parametrize(("role", "names"), [("prefill", ["prefill 0"]), ("decode", ["decode 0"])])
def test_one_worker_of_a_role_replays_alone(
    capsys: pytest.CaptureFixture[str], role: str, names: list[str]
) -> None:
    said = facts(capsys, "-d", DENSE, "--limit", "30", "--role", role)
    assert [worker["name"] for worker in said["workers"]] == names
    assert said["finished"] == 30


def test_prefill_workers_can_have_a_deployment_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = tmp_path / "prefill.toml"
    own.write_text(
        Path(DENSE).read_text().replace("chunked_prefill_size = 2048", "chunked_prefill_size = 512")
    )
    split = ["-d", DENSE, "--limit", "30", "--prefill-workers", "2", "--decode-workers", "1"]
    same = facts(capsys, *split)
    other = facts(capsys, *split, "--prefill-deployment", str(own), "--check")
    assert (same["prefill_deployment"], other["prefill_deployment"]) == (None, str(own))
    assert other["finished"] == same["finished"] == 30
    assert other["generated_tokens"] == same["generated_tokens"]
    # Prompts of more than 512 tokens take more rounds of prefill there, and the first token comes later.
    rounds = [sum(w["rounds_by_kind"]["prefill"] for w in each["workers"]) for each in (same, other)]
    assert rounds[0] < rounds[1]
    assert [w["rounds"] for w in same["workers"]][2:] != [w["rounds"] for w in other["workers"]][2:]
    own.write_text(own.read_text() + "\nmax_batch_size = 'many'\n")
    status, _, err = run(capsys, *split, "--prefill-deployment", str(own))
    assert (status, str(own) in err) == (2, True)


def test_the_text_report_fits_the_terminal_and_ends_with_the_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = run(capsys, "-d", DENSE, "--limit", "20", "--decode-workers", "2")
    assert status == 0
    assert out.splitlines()[-1].startswith("RESULT      all requests finished")
    assert all(len(line) <= 80 for line in out.splitlines())


def test_the_host_tier_brings_back_what_was_retracted(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["-d", DENSE, "--pool-gib", "1"]
    without = facts(capsys, *small)["figures"]
    with_host = facts(capsys, *small, "--host-gib", "4")["figures"]
    assert without["tiers"] is None
    tiers = with_host["tiers"]
    assert tiers["host_blocks"] == 511
    assert tiers["pages_written"] > 0
    assert tiers["tokens_loaded"] == tiers["pages_loaded"] * 64
    assert tiers["saved_s"] == pytest.approx(tiers["tokens_loaded"] * 35e-6)
    assert with_host["tokens"]["computed_again"] < without["tokens"]["computed_again"]


def test_a_slow_host_link_makes_a_load_take_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["-d", DENSE, "--pool-gib", "1", "--host-gib", "4"]
    quick = facts(capsys, *small)["figures"]
    slow = facts(capsys, *small, "--load-back-gbps", "0.2", "--write-back-latency", "30ms")["figures"]
    assert slow["duration_s"] > quick["duration_s"]


STORED = ["-d", DENSE, "--host-gib", "4", "--enable-l3-storage", "--limit", "80"]


def test_storage_serves_prompts_that_nobody_has_sent_before(capsys: pytest.CaptureFixture[str]) -> None:
    none = facts(capsys, *STORED)["figures"]
    full = facts(capsys, *STORED, "--storage", "1", "--check")["figures"]
    assert none["tiers"]["pages_prefetched"] == 0
    assert full["tiers"]["pages_prefetched"] > 0
    assert full["tokens"]["prompt_computed"] < none["tokens"]["prompt_computed"]


def test_a_failed_load_costs_a_retraction_and_no_request(capsys: pytest.CaptureFixture[str]) -> None:
    figures = facts(capsys, *STORED, "--storage", "1", "--storage-failure-rate", "0.3", "--check")["figures"]
    assert figures["tiers"]["loads_failed"] > 0
    assert figures["retractions"]["count"] >= figures["tiers"]["loads_failed"]
    assert figures["requests"]["finished"] == 80


@pytest.mark.parametrize("every", ["2", "7"])
def test_a_retracted_decode_worker_request_lands_again_and_goes_on_where_it_was(
    capsys: pytest.CaptureFixture[str], every: str
) -> None:
    flags = ["-d", DENSE, "--limit", "12", "--decode-workers", "1", "--check"]
    plain = facts(capsys, *flags)
    hurt = facts(capsys, *flags, "--force-retract-every", every)
    assert hurt["relanded"] > 0
    assert hurt["generated_tokens"] == plain["generated_tokens"]
    assert hurt["finished"] == 12


def test_a_closed_loop_never_has_more_out_than_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    facts(capsys, "-d", DENSE, "--limit", "40", "--decode-workers", "2", "--concurrency", "3", "-o", str(out))
    table = pl.read_parquet(out / "requests.parquet")
    begins, ends = table["arrived_s"].to_list(), table["finished_s"].to_list()
    assert max(sum(b <= at < e for b, e in zip(begins, ends, strict=True)) for at in begins) == 3


LIVELOCK = """
prefix_granularity = 4
max_scheduled_tokens = 16
max_batch_size = 4
pool_blocks = 10
[[cache_groups]]
group_id = "full"
block_granularity = 4
"""


@pytest.mark.parametrize("prefill", ["0", "1"])
def test_workers_that_all_go_round_end_the_replay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, prefill: str
) -> None:
    trace, deployment = tmp_path / "t.jsonl", tmp_path / "d.toml"
    rows = [{"arrival_s": 0, "prompt_tokens": 16, "output_tokens": 60} for _ in range(4)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    deployment.write_text(LIVELOCK)
    words = (
        "replay-trace",
        str(trace),
        "-d",
        str(deployment),
        "--prefill-workers",
        prefill,
        "--decode-workers",
        "2",
    )
    status = errors.run(lambda given: cli.app(given, standalone_mode=False), words)
    assert status == 1
    assert "RESULT      livelock: 4 requests left" in capsys.readouterr().out


@pytest.mark.parametrize("overlap", ["0", "1"])
def test_retractions_on_purpose_are_recovered_from(capsys: pytest.CaptureFixture[str], overlap: str) -> None:
    figures = facts(
        capsys,
        "-d",
        DENSE,
        "--limit",
        "40",
        "--force-retract-every",
        "25",
        "--overlap-schedule-depth",
        overlap,
        "--check",
    )["figures"]
    assert figures["retractions"]["count"] > 10
    assert figures["requests"]["finished"] == 40


def test_storage_can_be_a_file_of_requests(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first = facts(capsys, *STORED, "--storage", "0")["figures"]
    listed = tmp_path / "stored.txt"
    listed.write_text("c21-0\n\n")
    some = facts(capsys, *STORED, "--storage", str(listed))["figures"]
    assert first["tiers"]["pages_prefetched"] == 0 < some["tiers"]["pages_prefetched"]
    listed.write_text("nobody\n")
    status, _, err = run(capsys, *STORED, "--storage", str(listed))
    assert (status, "'nobody'" in err) == (2, True)


def test_a_run_of_workers_is_kept_with_its_hand_offs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = facts(capsys, "-d", DENSE, "--limit", "20", "--decode-workers", "2", "--output", str(out))
    requests = pl.read_parquet(out / "requests.parquet")
    assert requests["status"].to_list() == ["finished"] * 20
    assert (requests["begin_s"] >= requests["ready_s"]).all()
    assert set(pl.read_parquet(out / "rounds.parquet")["worker"]) == {"prefill 0", "decode 0", "decode 1"}
    assert json.loads((out / "run.json").read_text()) == said
    status, _, err = run(capsys, "-d", DENSE, "--limit", "20", "--decode-workers", "2", "--output", str(out))
    assert (status, "is there already" in err) == (2, True)


def test_torch_carries_out_every_plan_and_changes_none(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the extra torch is not installed")
    flags = ["-d", DENSE, "--limit", "25", "--pool-gib", "1", "--host-gib", "2"]
    assert facts(capsys, *flags, "--backend", "torch", "--device", "cpu") == facts(capsys, *flags)
    split = ["-d", DENSE, "--limit", "15", "--decode-workers", "2"]
    assert facts(capsys, *split, "--backend", "torch") == facts(capsys, *split)


def test_a_violation_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsafe(*_: object, **__: object) -> None:
        raise Violation(3, "c21-0", Place("full", 7), "expected this, found that", "nobody")

    monkeypatch.setattr("kvplan.replay.session.play", unsafe)
    status, out, _ = run(capsys, "-d", DENSE, "--limit", "5")
    assert status == 1
    assert "violation: round 3, request c21-0, page 7 of full" in out


def test_measured_costs_are_transfer_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    costs = tmp_path / "device.toml"
    table = "latency_s = 0.0\nbytes_per_s = {}\n"
    kinds = ("zeroing", "write_back", "load_back")
    costs.write_text("".join(f"[{kind}]\n" + table.format(2e8) for kind in kinds))
    small = ["-d", DENSE, "--pool-gib", "1", "--host-gib", "4", "--limit", "80"]
    given = facts(capsys, *small, "--write-back-gbps", "0.2", "--load-back-gbps", "0.2")
    assert facts(capsys, *small, "--device-costs", str(costs)) == given


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prefill-workers", "-1"], "--prefill-workers -1"),
        (["--prefill-workers", "0", "--decode-workers", "0"], "one worker is the least"),
        (["--routing", "random", "--decode-workers", "2"], "--routing 'random'"),
        (["--backend", "jax"], "--backend 'jax'"),
        (["--device", "cpu"], "--backend torch"),
        (["--host-gib", "1", "--device-costs", DENSE], "[zeroing] is missing"),
        (["--decode-workers", "1", "--max-rounds", "0"], "max_rounds 0"),
        (["--role", "P", "--force-retract-every", "3"], "a prefill worker never retracts"),
        (["--step-fixed", "1e9s"], "292 years"),
        (["--decode-workers", "2", "--transfer-latency", "1e300s"], "292 years"),
        (["--pool-gib", "1000000000"], "at most"),
        (["--routing", "round-robin"], "--prefill-workers or --decode-workers"),
        (["--prefill-deployment", DENSE], "--prefill-workers or --decode-workers"),
        (["--prefill-deployment", DENSE, "--decode-workers", "0"], "workers of both roles"),
        (["--prefill-deployment", STATE, "--decode-workers", "1"], "both need the same"),
        (["--prefill-deployment", "/none.toml", "--decode-workers", "1"], "/none.toml does not exist"),
        (["--decode-workers", "2", "--transfer-gbps", "0"], "--transfer-gbps 0"),
        (["--decode-workers", "2", "--transfer-latency", "soon"], "--transfer-latency 'soon'"),
        (["--write-back-gbps", "5"], "without a host pool"),
        (["--host-gib", "1", "--load-back-gbps", "nan"], "--load-back-gbps nan"),
        (["--storage", "0.5"], "enable_l3_storage"),
        (["--host-gib", "1", "--enable-l3-storage", "--storage", "1.5"], "a share from 0 to 1"),
        (["--force-retract-every", "0"], "force-retract-every 0"),
        (["--decode-workers", "1", "--force-retract-every", "0"], "force-retract-every 0"),
    ],
)
def test_wrong_flags_get_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    status, out, err = run(capsys, "-d", DENSE, *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
