"""The benchmark that a GPU is measured with runs on a CPU too, with small sizes, and says the same of it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="the benchmark needs the extra kvplan-toolkit[torch]")

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
PARTS = ["bandwidths", "blocks", "soak", "real_size", "overhead", "recordings"]


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_part_runs_on_a_cpu(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--rounds", "300", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(output.read_text())
    assert figures["device"] == "cpu (one thread)"
    parts = figures["parts"]
    assert list(parts) == PARTS
    assert not any("error" in part for part in parts.values())
    assert parts["soak"]["rounds"] == 300
    assert parts["soak"]["counts"]["pages_stored"] > 100
    assert parts["soak"]["counts"]["pages_loaded"] > 100
    assert parts["overhead"]["torch"]["rounds"] == parts["overhead"]["none"]["rounds"] == 100
    assert parts["real_size"]["safe"]
    assert parts["recordings"]["played"] > 5
    assert parts["recordings"]["unsafe"] == []
    assert "32 planes of" in parts["real_size"]["layout"]
    assert "allocated bytes: not told on a CPU" in done.stdout


def test_a_part_that_fails_is_told_and_the_others_count() -> None:
    gpu = program()

    def broken() -> dict[str, object]:
        raise ValueError("no room")

    part = gpu.measured(broken)
    assert (part["error"], part["ok"]) == ("ValueError: no room", False)
    assert "| soak failed | ValueError: no room |" in gpu.table({"device": "x", "parts": {"soak": part}})


def test_the_soak_on_a_gpu_is_of_ten_thousand_rounds_in_forty_gib() -> None:
    """What a CPU cannot try: sizes, worked out as the soak does."""
    gpu = program()
    scenario = gpu.soak_scenario(10_000, 1024, 1280)
    assert max(request.submit for request in scenario.requests) + 64 > 10_000
    assert scenario.max_rounds == 10_000
    memory = gpu.Memory([gpu.GroupSpec("full", 4, 1, (gpu.Field("kv", 40 * gpu.GIB // 1024 // 4),))])
    assert memory.layout(1024).bytes == 40 * gpu.GIB
    assert memory.layout(1280).bytes == 50 * gpu.GIB  # pinned
