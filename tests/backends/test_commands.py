"""check-plan and measure-device from the command line."""

import json
import tomllib
from pathlib import Path

import pytest

from kvplan.backends.backend import Backend
from kvplan.cli import app
from kvplan.commands import errors
from kvplan.scheduler import ExecutionPlan, Scheduler

torch = pytest.importorskip("torch", reason="check-plan needs the extra kvplan-toolkit[torch]")

EXAMPLES = Path(__file__).parents[2] / "examples"
TRACE = str(EXAMPLES / "traces" / "shared_prefixes.jsonl")

DEPLOYMENT = """
prefix_granularity = 4
max_scheduled_tokens = 64
max_batch_size = 4
pool_blocks = 60
[[cache_groups]]
group_id = "full"
block_granularity = 4
bytes_per_page = 4096
[[cache_groups]]
group_id = "sliding"
block_granularity = 4
retention = "SlidingWindow"
sliding_window_tokens = 8
bytes_per_page = 4096
"""


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, str]:
    """A deployment of 60 blocks of 4 KiB and a trace that fills it several times over."""
    deployment, trace = tmp_path / "d.toml", tmp_path / "t.jsonl"
    deployment.write_text(DEPLOYMENT)
    rows = [{"timestamp": 0.1 * at, "input_length": 40, "output_length": 20} for at in range(12)]
    trace.write_text("".join(json.dumps(row | {"hash_ids": [at % 3]}) + "\n" for at, row in enumerate(rows)))
    return str(deployment), str(trace)


def run(*arguments: str) -> int:
    return errors.run(lambda _: app(list(arguments), standalone_mode=False))


def test_a_safe_trace_ends_with_safe(small: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check-plan", small[1], "-d", small[0]) == 0
    out = capsys.readouterr().out
    assert "Arena       60 LCM blocks, 240.00 KiB in one allocation\n" in out
    assert "Requests    12 of 12 finished   0 never fit\n" in out
    assert "RESULT      safe: every read found what its request's own history says\n" in out


@pytest.mark.parametrize("role", ["Fused", "P", "D"])
def test_every_role_is_played(small: tuple[str, str], role: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check-plan", small[1], "-d", small[0], "--role", role, "--format", "json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["safe"], result["role"], result["finished"]) == (True, role, 12)
    counts = result["counts"]
    assert (counts["rows_sent"] > 0) == (role == "P")
    assert (counts["rows_received"] > 0) == (role == "D")


def test_a_host_tier_and_accepted_lengths_are_played(
    small: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--host-blocks", "100", "--decode-input-tokens", "3", "--accept-length", "2")
    overlap = ("--overlap-schedule-depth", "1", "--format", "json")
    assert run("check-plan", small[1], "-d", small[0], *more, *overlap) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["pages_stored"] > 10


def test_a_violation_is_a_finding_with_its_place(
    small: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out = Backend.carry_out

    def unzeroed(backend: Backend, plan: ExecutionPlan, scheduler: Scheduler) -> None:
        plan.pages_to_zero.clear()
        carry_out(backend, plan, scheduler)

    monkeypatch.setattr(Backend, "carry_out", unzeroed)
    assert run("check-plan", small[1], "-d", small[0]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "RESULT not safe: round 0, request" in out
    assert "page 1 of full: writes position 0 over memory that was never zeroed or written" in out
    assert "last written by nobody" in out
    assert run("check-plan", small[1], "-d", small[0], "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)["violation"]
    assert (found["round"], found["group"], found["page"], found["tier"]) == (0, "full", 1, "device")


@pytest.mark.parametrize("role", ["Fused", "P", "D"])
def test_random_requests_need_no_trace(
    small: tuple[str, str], role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--random", "60", "--seed", "3", "--role", role, "--host-blocks", "200", "--format", "json")
    outputs = []
    for _ in range(2):
        assert run("check-plan", "-d", small[0], *flags) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0]["counts"] == outputs[1]["counts"]
    assert outputs[0]["finished"] == 60
    assert outputs[0]["counts"]["pages_zeroed"] > 120  # every page is used more than once


def test_rows_shrink_on_request(small: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check-plan", small[1], "-d", small[0], "--scale-down", "16") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "15.00 KiB in one allocation; 240.00 KiB as deployed, here with rows up to 16 times smaller" in out


def test_blocks_are_found_by_allocation(small: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check-plan", "-d", small[0], "--find-max-blocks") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "LCM blocks of 4.00 KiB fit: the null block, the 60 deployed and" in out
    assert run("check-plan", "-d", small[0], "--find-max-blocks", "--reserve-gib", "1e6") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "RESULT 0 LCM blocks of 4.00 KiB fit beside" in out
    assert "61 fewer than the 60 deployed and the null block" in out
    assert "--pool-blocks" not in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--device", "cuda:77"), "device 'cuda:77' is not there; "),
        ((), "no TRACE is given; one of a trace's file, --random N, --scenario FILE and --find-max"),
        (("--random", "3", "--find-max-blocks"), "--random and --find-max-blocks are given; one of"),
        (("--random", "3", "--limit", "2"), "--limit 2 is given; with --random it has nothing to say"),
        (("--find-max-blocks", "--copy-delay", "1"), "--copy-delay 1 is given; with --find-max-blocks"),
        (("--scenario", "x.json"), "--scenario brings its own configuration; no deployment, flag"),
        (("--random", "3", "--storage", "0.5"), "--storage is given without a storage tier"),
        (("--random", "3", "--gpu", "h200"), "--gpu is given without --model"),
    ],
)
def test_wrong_input_is_a_sentence(
    small: tuple[str, str], arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check-plan", "-d", small[0], *arguments) == 2
    assert sentence in capsys.readouterr().err


def test_a_cpu_is_measured_and_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "device.toml"
    flags = ("--device", "cpu", "--largest-mib", "1", "--repeats", "2")
    assert run("measure-device", "-o", str(output), *flags) == 0
    assert "no device was measured" in " ".join(capsys.readouterr().out.split())
    document = tomllib.loads(output.read_text())
    assert document["basis"] == "memory copies of this machine's CPU: no device was measured"
    assert [size for size, _ in document["write_back"]["samples"]] == [1 << 16, 1 << 18, 1 << 20]
    assert run("measure-device", "-o", str(output), *flags) == 2
    assert "is there; give --force to replace it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cuda:77", "xpu", "meta", "cpu:1", "tpu pod", "", "cuda:-1"])
def test_every_command_names_the_devices_there_are(
    small: tuple[str, str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        ("check-plan", small[1], "-d", small[0]),
        ("check-plan", "--find-max-blocks", "-d", small[0]),
        ("replay-trace", small[1], "-d", small[0], "--backend", "torch"),
        ("measure-device", "-o", str(tmp_path / "never.toml")),
    ]
    for command in commands:
        assert run(*command, "--device", name) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"kvplan: device {name!r} is not there; ")
        assert "cpu" in error
        assert error.count("\n") == 1
    assert not (tmp_path / "never.toml").exists()


def test_a_model_is_carried_out_in_its_own_planes(
    small: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", "deepseek-v2-lite", "--cache-gib", "2", "--kv-dtype", "fp8", "--max-num-seqs", "4")
    assert run("check-plan", small[1], *model, "--format", "json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["safe"]
    assert result["memory_source"].startswith("deepseek-v2-lite, tp 1, pp 1, dp 1, cache fp8_e4m3")
    assert result["memory_layout"].startswith("27 planes of ")
    assert result["arena_bytes"] <= 2**30 < result["deployed_bytes"] <= 2 * 2**30
    assert run("replay-trace", small[1], *model, "--backend", "torch", "--scale-down", "64") == 0
    assert "RESULT" in capsys.readouterr().out
    for flag in (("--device", "cpu"), ("--scale-down", "4")):
        assert run("replay-trace", small[1], *model, *flag) == 2
        assert f"{flag[0]} {flag[1]} is given; it goes with --backend torch" in capsys.readouterr().err


def test_blocks_of_a_model_are_sought_beside_what_size_pool_leaves_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A GPU of a size that this machine has free: the weights and the rest are kept out of it."""
    model = ("--model", "qwen2.5-7b", "--format", "json")
    given = ("--gpu-memory-gib", "1000000", "--weights-gib", "1", "--reserve-gib", "1")
    assert run("check-plan", "--find-max-blocks", *model, *given) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["fits"] is False
    assert result["found"] == 0
    assert abs(result["reserve_bytes"] / 2**30 - (100_000 + 2)) < 1
    assert run("check-plan", "--find-max-blocks", *model, "--cache-gib", "0.1") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["fits"], result["reserve_bytes"]) == (True, 0)
    assert result["found"] > result["promised"] > 0


def test_a_device_is_told_as_json_and_its_file_taken_by_a_replay(
    small: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "device.toml"
    flags = ("--device", "cpu", "--largest-mib", "1", "--repeats", "2", "--format", "json")
    assert run("measure-device", "-o", str(output), *flags) == 0
    told = json.loads(capsys.readouterr().out)
    document = tomllib.loads(output.read_text())
    for kind in ("zeroing", "write_back", "load_back"):
        assert told[kind]["bytes_per_s"] == pytest.approx(document[kind]["bytes_per_s"], rel=1e-3)
        assert len(told[kind]["samples"]) == 3
    assert told["output"] == str(output)
    assert [path.name for path in tmp_path.iterdir() if "device" in path.name] == ["device.toml"]
    costs = ("--host-blocks", "100", "--device-costs", str(output))
    assert run("replay-trace", small[1], "-d", small[0], *costs, "--backend", "torch") == 0
    assert run("measure-device", "-o", str(tmp_path), *flags) == 2
    assert "is a folder; a file is expected" in capsys.readouterr().err


def test_memory_that_the_machine_has_not_is_refused_before_it_is_touched(
    small: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", "llama-3.1-8b", "--cache-gib", "100000", "--scale-down", "1")
    assert run("check-plan", small[1], *model) == 2
    error = capsys.readouterr().err
    assert "bytes cannot be had on cpu: " in error
    assert "are available; a smaller pool, or a larger --scale-down, is needed" in error


def test_a_gpu_s_copies_take_their_own_time(
    small: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvplan.backends.torch_module.device_named", lambda name: torch.device("cuda:0"))
    assert run("check-plan", small[1], "-d", small[0], "--device", "cuda:0", "--copy-delay", "2") == 2
    assert capsys.readouterr().err == (
        "kvplan: --copy-delay 2 is given; with --device cuda:0 it has nothing to say\n"
    )


def test_acks_are_told_of_where_there_is_a_host_tier(
    small: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for more, acks in (
        ((), "at once, right after the copies"),
        (("--copy-delay", "3"), "when the device has"),
    ):
        assert run("check-plan", small[1], "-d", small[0], "--host-blocks", "100", *more) == 0
        assert f"\nAcks        {acks}" in capsys.readouterr().out
    assert run("check-plan", small[1], "-d", small[0]) == 0
    assert "Acks" not in capsys.readouterr().out
