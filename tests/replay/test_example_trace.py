import subprocess
import sys
from pathlib import Path

from kvplan.deployment import load_deployment
from kvplan.replay.play import Ending
from kvplan.replay.replay import replay
from kvplan.traces import read_trace

EXAMPLES = Path(__file__).parents[2] / "examples"
TRACE = EXAMPLES / "traces" / "shared_prefixes.jsonl"


def test_the_example_is_what_its_script_prints() -> None:
    script = EXAMPLES / "traces" / "make_shared_prefixes.py"
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert made.stdout == TRACE.read_text()


def test_the_example_replays_on_each_deployment_and_shares_its_prefixes() -> None:
    trace = read_trace(TRACE)
    for name in ("dense_gqa", "hybrid_sliding", "hybrid_state"):
        run = replay(trace, load_deployment(EXAMPLES / f"{name}.toml").config)
        assert run.summary.ending is Ending.COMPLETE
        assert run.summary.figures.requests.finished == len(trace) == 197
        rate = run.summary.figures.tokens.cache_rate
        assert rate is not None
        assert rate > 0.7
