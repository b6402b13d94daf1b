"""`--model` and what goes with it on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli import app
from kvplan.commands import errors
from kvplan.deployment import load_deployment
from kvplan.recipes import plan_memory
from tests.recipes.small import written

QWEN = ["--model", "qwen3-next-80b", "--gpu", "h200", "--tp", "2"]
WISH = ["--max-num-seqs", "64", "--max-context-len", "131072"]


class Ran:
    """What a command line printed, and its exit status."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.status = errors.run(lambda given: app(given, standalone_mode=False), list(arguments))
        self.out, self.err = capsys.readouterr()

    def json(self) -> Any:
        return json.loads(self.out)


def test_size_pool_of_a_model_says_what_the_plan_says(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "size-pool", *QWEN, *WISH, "--format", "json")
    plan = plan_memory("qwen3-next-80b", gpu="h200", tp=2, max_num_seqs=64, max_context_len=131_072)
    assert plan.demand is not None
    found = ran.json()
    assert ran.status == 1
    assert found["needed_blocks"] == plan.demand.needed_blocks == 8_964
    assert found["pool"]["usable_blocks"] == plan.usable_blocks == 4_153
    assert found["pool"]["requests_at_once"] == plan.requests_at_once() == 29
    memory = found["memory"]
    assert memory["bytes_per_token"] == 12_288
    assert [line["name"] for line in memory["stages"][0]["budget"]] == [
        "device",
        "usable",
        "weights",
        "activations and graphs",
        "cache",
    ]
    assert {line["basis"] for line in memory["stages"][0]["budget"]} == {"exact", "estimated"}


def test_the_text_has_the_budget_the_layout_and_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "size-pool", *QWEN, *WISH)
    assert ran.out.startswith("qwen3-next-80b-a3b, tp 2, pp 1, dp 1, cache bf16\n")
    for text in (
        "Memory on each GPU",
        "One LCM block",
        "RESULT  does not fit at once",
        "given by --gpu h200",
    ):
        assert text in ran.out


def test_what_to_try_fits_when_it_is_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "size-pool", *QWEN, *WISH)
    tries = [line.split() for line in ran.out.splitlines() if line.startswith("try")]
    assert len(tries) == 5
    assert tries[-1] == ["try", "--kv-dtype", "fp8", "54", "such", "requests", "at", "once"]
    for _, name, value, *_ in tries[:-1]:
        assert Ran(capsys, "size-pool", *QWEN, *WISH, name, value).status == 0


def test_a_pool_that_a_gpu_bounds_is_made_larger_by_more_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["size-pool", "--model", "gpt-oss-120b", "--gpu", "h200", *WISH]
    ran = Ran(capsys, *line)
    assert "--pool-blocks" not in ran.out
    assert "try     --tp 4   fits: 131,458 of " in ran.out
    assert [Ran(capsys, *line, "--tp", tp).status for tp in ("2", "4")] == [1, 0]
    found = Ran(capsys, *line, "--format", "json").json()
    assert [one["changes"] for one in found["alternatives"]] == [
        "max_batch_size",
        "max_context_len",
        "max_total_tokens",
    ]
    assert found["memory"]["more_gpus"]["tp"] == 4
    # A pool, or a cache, that was given is given larger.
    for memory in (["--pool-blocks", "100"], ["--cache-gib", "9"]):
        given = ["size-pool", "--model", "gpt-oss-120b", *memory, *WISH]
        found = Ran(capsys, *given, "--format", "json").json()
        assert found["memory"]["more_gpus"] is None
        assert found["alternatives"][-1]["changes"] == "pool"


def test_fewer_requests_are_tried_in_the_memory_that_they_leave(capsys: pytest.CaptureFixture[str]) -> None:
    # With steps of 4 tokens each request keeps 4 states beside the cache: 64 leave less of it than 50 do.
    model = [
        "--model",
        "bamba-9b",
        "--gpu",
        "h100",
        "--max-context-len",
        "4096",
        "--decode-input-tokens",
        "4",
    ]

    def sized(requests: int) -> Ran:
        return Ran(capsys, "size-pool", *model, "--max-num-seqs", str(requests), "--format", "json")

    found = sized(64).json()
    first = found["alternatives"][0]
    requests = first["flags"]["--max-num-seqs"]
    assert requests > found["pool"]["requests_at_once"]
    assert first["usable_blocks"] > found["pool"]["usable_blocks"]
    assert sized(requests).json()["pool"]["usable_blocks"] == first["usable_blocks"]
    assert (sized(requests).status, sized(requests + 1).status) == (0, 1)


def test_a_context_below_a_window_is_tried_with_the_groups_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Up to 1,024 tokens no layer of Gemma 3 has a window to speak of: one group, in which less is padding.
    model = ["--model", "gemma-3-27b", "--max-num-seqs", "64", "--cache-gib", "20"]

    def sized(tokens: int) -> Ran:
        return Ran(capsys, "size-pool", *model, "--max-context-len", str(tokens), "--format", "json")

    alternatives = {one["changes"]: one["flags"] for one in sized(131072).json()["alternatives"]}
    tokens = alternatives["max_context_len"]["--max-context-len"]
    assert tokens <= 1024
    assert len(sized(tokens).json()["groups"]) == 1
    assert (sized(tokens).status, sized(tokens + 1).status) == (0, 1)


def test_a_request_too_long_for_a_gpu_is_told_of_more_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["max-request", "--model", "llama-3.1-70b", "--gpu", "h100", "--tp", "4", "--tokens", "900000"]
    ran = Ran(capsys, *line)
    assert ran.status == 1
    assert "--pool-blocks" not in ran.out
    assert "try     --tp 8   fits: 14,063 of " in ran.out  # 900,000 tokens in pages of 64
    assert Ran(capsys, *line, "--tp", "8").status == 0
    # Eight KV heads are copied from there on: no further GPU makes a request's share smaller.
    assert Ran(capsys, *line[:-1], "90000000", "--format", "json").json()["memory"]["more_gpus"] is None


def test_what_to_try_counts_all_attention_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--model", "deepseek-v3", "--gpu", "h200", "--tp", "8", "--dp", "8"]
    wish = ["--max-num-seqs", "400", "--max-context-len", "16384"]
    ran = Ran(capsys, "size-pool", *line, *wish)
    assert ran.status == 1
    assert "each of 8 attention replicas serves 50 of the requests" in ran.out
    tries = [text.split() for text in ran.out.splitlines() if text.startswith("try")]
    assert tries[0][1] == "--max-num-seqs"
    assert int(tries[0][2]) % 8 == 0
    for _, name, value, *_ in tries[:-1]:
        assert Ran(capsys, "size-pool", *line, *wish, name, value).status == 0
    # An 8-bit cache holds the 400, so it stands for all replicas too.
    assert tries[-1][:3] == ["try", "--kv-dtype", "fp8"]
    assert int(tries[-1][3]) % 8 == 0
    assert Ran(capsys, "size-pool", *line, *wish, "--kv-dtype", "fp8").status == 0


def test_an_emitted_deployment_gives_the_same_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "deployment.toml"
    model = Ran(capsys, "size-pool", *QWEN, *WISH, "--format", "json", "--emit", str(file))
    again = Ran(capsys, "size-pool", "-d", str(file), "--max-context-len", "131072", "--format", "json")
    of_model, of_file = model.json(), again.json()
    layers = [group.pop("layers") for group in of_model["groups"]]
    assert [len(one) for one in layers] == [12, 12, 12, 12]
    assert sorted(number for one in layers for number in one) == list(range(48))
    for name in ("needed_blocks", "bytes_per_block", "verdict", "groups"):
        assert of_file[name] == of_model[name]
    assert of_file["pool"]["usable_blocks"] == 4_153
    assert load_deployment(file).config.max_batch_size == 64


def test_max_request_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["max-request", "--model", "llama-3.1-8b", "--cache-gib", "2.888671875", "--page-tokens", "16"]
    ran = Ran(capsys, *line, "--tokens", "29000")  # S3: 1,479 pages of 2 MiB
    assert ran.status == 1
    assert "never fits: 29,000 tokens; short by 5,352 tokens, 335 pages" in " ".join(ran.out.split())
    assert Ran(capsys, *line, "--tokens", "23648").status == 0


def test_flags_are_compared_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "size-pool", *QWEN, *WISH, "--compare", "max-num-seqs=16,29,30")
    assert ran.status == 0
    assert "RESULT  fits with --max-num-seqs 16, 29\n" in ran.out
    ran = Ran(capsys, "size-pool", *QWEN, *WISH, "--compare", "--kv-dtype=bf16,fp8", "--format", "json")
    assert ran.status == 1
    assert [(row["values"], row["bytes_per_token"]) for row in ran.json()["rows"]] == [
        ({"--kv-dtype": "bf16"}, 12_288),
        ({"--kv-dtype": "fp8"}, 6_144),
    ]


def test_a_value_that_leaves_no_room_is_a_row_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["size-pool", "--model", "llama-3.1-70b", "--gpu", "h100", "--max-num-seqs", "32"]
    line += ["--max-context-len", "32768", "--compare"]
    ran = Ran(capsys, *line, "tp=1,8")  # the weights alone are 131 GiB
    assert ran.status == 0
    assert "RESULT  fits with --tp 8\n" in ran.out
    assert "  --tp 1: nothing is left for the cache: 71.7 GiB usable" in ran.out
    none, some = Ran(capsys, *line, "tp=1,8", "--format", "json").json()["rows"]
    assert (none["result"], some["problem"]) == (None, None)
    assert none["problem"].startswith("nothing is left for the cache")
    alone = Ran(capsys, *line, "tp=1")
    assert alone.status == 2
    assert alone.err.startswith("kvplan: --compare, --tp 1: nothing is left for the cache")


def test_what_a_comparison_tries_fits_when_it_is_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["size-pool", "--model", "gemma-3-27b", "--gpu", "h100", "--max-num-seqs", "64"]
    line += ["--max-context-len", "131072"]
    ran = Ran(capsys, *line, "--compare", "utilisation=0.8,0.9")
    assert ran.status == 1
    tries = [text.split("\u00a0\u00a0")[0].split()[1:5] for text in ran.out.splitlines() if text[:3] == "try"]
    assert tries
    for flags in tries:
        assert flags[:2] == ["--utilisation", "0.9"]
        assert Ran(capsys, *line, *flags).status == 0


def test_two_flags_are_compared_in_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--compare", "kv-dtype=bf16,fp8", "--compare", "max-num-seqs=16,32,64"]
    ran = Ran(capsys, "size-pool", *QWEN, *WISH, *both, "--format", "json")
    rows = ran.json()["rows"]
    assert [tuple(row["values"].values()) for row in rows] == [
        (dtype, count) for dtype in ("bf16", "fp8") for count in ("16", "32", "64")
    ]
    # 29 of bf16 and 54 of fp8 fit, whatever is asked for.
    assert [row["result"]["verdict"] for row in rows] == [
        "fits",
        *["not_at_once"] * 2,
        *["fits"] * 2,
        "not_at_once",
    ]
    for row in rows:
        dtype, count = row["values"].values()
        alone = Ran(
            capsys,
            "size-pool",
            *QWEN,
            *WISH[2:],
            "--kv-dtype",
            dtype,
            "--max-num-seqs",
            count,
            "--format",
            "json",
        )
        assert alone.json()["needed_bytes"] == row["result"]["needed_bytes"]


def test_where_no_value_fits_what_would_is_said_and_does(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "size-pool", *QWEN, *WISH, "--compare", "kv-dtype=bf16,fp8")
    assert "RESULT  fits with no --kv-dtype of these\n" in ran.out
    lines = [line.removeprefix("try").strip() for line in ran.out.splitlines() if line.startswith("try")]
    tries = [line.split("   ")[0].split() for line in lines]
    assert [flags[::2] for flags in tries] == [
        ["--kv-dtype", "--max-num-seqs"],
        ["--kv-dtype", "--max-context-len"],
    ]
    for flags in tries:
        assert Ran(capsys, "size-pool", *QWEN, *WISH, *flags).status == 0


def test_memory_needed_and_there_are_compared_in_gib(capsys: pytest.CaptureFixture[str]) -> None:
    out = Ran(capsys, "size-pool", *QWEN, *WISH, "--compare", "kv-dtype=bf16,fp8").out
    header, first = out.splitlines()[:2]
    assert header.split()[:5] == ["--kv-dtype", "a", "token", "needs", "there"]
    # 8,964 blocks of 12 planes of 1 MiB (16 pages of 64 tokens of 1 KiB); 4,153 are there.
    assert first.split()[:7] == ["bf16", "12,288", "B", "107.51", "GiB", "49.81", "GiB"]


def test_the_group_table_has_layers_and_costs_in_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = Ran(capsys, "size-pool", "--model", "gpt-oss-120b", "--gpu", "h200", *WISH).out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "Cache groups kind layers page bytes/page pages/block a request costs" in rows
    assert "full_attention full 18 64 t 2.25 MiB 1 1 page + 15.6 per 1k tokens" in rows
    assert "sliding_128 sliding 18 64 t 2.25 MiB 1 3 pages; 130 once for all" in rows


@pytest.mark.parametrize("width", ["80", "100"])
def test_no_line_is_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for extra in ([], ["--compare", "kv-dtype=bf16,fp8"], ["--pp", "4"]):
        ran = Ran(capsys, "size-pool", *QWEN, *WISH, *extra)
        assert max(map(len, ran.out.splitlines())) <= int(width)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h100"], "--gpu is given without --model"),
        (["--model", "nothing-like-it"], "does not exist"),
        (["--model", "llama-3.1-8b", "-d", "x.toml"], "give one of them"),
        (
            ["--model", "llama-3.1-8b", "--gpu-memory-gib", "0"],
            "kvplan: --gpu-memory-gib is 0.0; a number of GiB above 0",
        ),
        (
            ["--model", "llama-3.1-8b", "--gpu", "h200", "--page-tokens", "64", "--prefix-granularity", "96"],
            "kvplan: --prefix-granularity is 96; it must be a multiple of --page-tokens (64)",
        ),
        (
            ["--model", "llama-3.1-8b", "--gpu", "h200", "--max-num-batched-tokens", "0"],
            "kvplan: --max-num-batched-tokens is 0; at least 1",
        ),
        (["--model", "llama-3.1-8b", "--gpu", "h300"], "kvplan: --gpu 'h300' is not known"),
        (["--model", "a/tp/role", "--gpu", "h300"], "kvplan: --model 'a/tp/role' does not exist"),
        (
            ["--model", "llama-3.1-8b", "--gpu", "h200", "--dp", "2"],
            "kvplan: --dp is 2; it must divide --tp (1)",
        ),
        (["--model", "llama-3.1-8b", "--cache-gib", "1,x"], "--cache-gib is '1,x'; numbers with commas"),
        (
            ["--model", "llama-3.1-8b", "--gpu", "h100", "--tp", "3"],
            "32 query heads cannot be divided over 3",
        ),
        (["--model", "llama-3.1-8b", "--compare", "kv-dtype"], "FLAG=V1,V2 is needed"),
        (["--model", "llama-3.1-8b", "--compare", "colour=red"], "--colour, which is no flag"),
        (["--model", "llama-3.1-8b", "--compare", "tp=1,x"], "--tp x: a number is needed"),
        (["--model", "llama-3.1-8b", "--compare", "kv-dtype=fp3"], "--kv-dtype fp3: --kv-dtype is 'fp3'"),
        (
            ["--model", "llama-3.1-8b", "--compare", "tp=2,1,2"],
            "kvplan: --compare has --tp 2 twice; once is enough",
        ),
        (
            ["--model", "llama-3.1-8b", "--compare", "max-num-seqs=1", "--compare", "max_running_requests=2"],
            "--compare is about --max-running-requests twice",
        ),
        (
            [
                "--model",
                "llama-3.1-8b",
                *(f"--compare={n}={','.join('123456789')}" for n in ("tp", "pp", "dp")),
            ],
            "729 combinations; at most 100",
        ),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    ran = Ran(capsys, "size-pool", *WISH, *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_the_wanted_batch_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "size-pool", "--model", "llama-3.1-8b", "--max-context-len", "100")
    assert ran.status == 2
    assert "give the wanted requests as --max-num-seqs" in ran.err


def test_replay_trace_takes_a_model_and_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = str(Path(__file__).parents[2] / "examples" / "traces" / "shared_prefixes.jsonl")
    written = str(tmp_path / "d.toml")
    words = ["replay-trace", trace, "--limit", "20", "--format", "json"]
    model = ["--model", "llama-3.1-8b", "--gpu-memory-gib", "24", "--max-num-seqs", "8", "--emit", written]
    ran = Ran(capsys, *words, *model)
    assert ran.status == 0, ran.err
    assert ran.json()["figures"]["requests"]["finished"] == 20
    assert Ran(capsys, *words, "-d", written).json()["figures"] == ran.json()["figures"]
    again = Ran(capsys, *words, *model)
    assert (again.status, "is there already" in again.err) == (2, True)


def test_s9_says_both_bases_of_what_windows_cost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 12
    path = hybrid(tmp_path, layer_types=kinds, num_hidden_layers=24, num_key_value_heads=8)
    wish = ["--max-num-seqs", "32", "--max-context-len", "8192", "--cache-gib", "20"]
    out = " ".join(Ran(capsys, "size-pool", "--model", path, *wish).out.split())
    assert (
        "the wanted tokens take 6.09 GiB with each window capped exactly, 12.00 GiB if every layer kept the "
        "whole context (exact: rows alone, no pages)" in out
    )


def hybrid(folder: Path, **changes: object) -> str:
    """8 layers, of which the first two keep everything and the others a window: 4 KV heads of 64, bf16."""
    kinds = ["full_attention"] * 2 + ["sliding_attention"] * 6
    values = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 512,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": kinds,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 1000,
        "torch_dtype": "bfloat16",
    }
    return str(written(folder, values, **changes))


def test_a_stage_without_layers_of_a_group_is_emitted_with_0_bytes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "d.toml"
    line = ["--model", hybrid(tmp_path), "--cache-gib", "1,2", "--pp", "2", "--pp-layers", "2,6", *WISH]
    model = Ran(capsys, "size-pool", *line, "--emit", str(file), "--format", "json").json()
    assert model["memory"]["tightest_stage"] == 0
    deployment = load_deployment(file)
    page = 64 * 2 * 4 * 64 * 2  # tokens, K and V, heads, their width, bf16: of one layer
    assert deployment.group_bytes == {"full_attention": 2 * page, "sliding_128": 0}
    # The other stage's six layers fill the same block with one page; here it is three pages of two layers.
    assert deployment.block_bytes == 6 * page == model["bytes_per_block"]
    assert deployment.usable_blocks == 2**30 // (6 * page) - 1
    again = Ran(capsys, "size-pool", "-d", str(file), *WISH[2:], "--format", "json").json()
    for name in ("verdict", "needed_blocks", "needed_bytes", "bytes_per_block", "pool_bytes"):
        assert again[name] == model[name]
    trace = str(Path(__file__).parents[2] / "examples" / "traces" / "shared_prefixes.jsonl")
    assert Ran(capsys, "replay-trace", trace, "--limit", "5", "-d", str(file), "--host-gib", "1").status == 0


def test_a_deployment_of_no_layer_at_all_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text(
        "prefix_granularity = 64\nmax_scheduled_tokens = 64\nmax_batch_size = 1\n"
        '[[cache_groups]]\ngroup_id = "kv"\nblock_granularity = 64\nbytes_per_page = 0\n'
    )
    with pytest.raises(ValueError, match=r"bytes_per_page is 0 for every cache group \(kv\)"):
        load_deployment(file)


def test_emit_replaces_a_file_only_when_forced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text("mine")
    line = ["size-pool", "--model", "llama-3.1-8b", "--cache-gib", "8", *WISH, "--emit", str(file)]
    refused = Ran(capsys, *line)
    assert (refused.status, refused.out, file.read_text()) == (2, "", "mine")
    assert "--force to replace it" in refused.err
    assert Ran(capsys, *line, "--force").status == 1
    assert load_deployment(file).config.max_batch_size == 64
    assert [path.name for path in tmp_path.iterdir()] == ["d.toml"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--max-total-tokens", "1"], "max_total_tokens is 1"),
        (["--emit", "{}"], "is a directory"),
        (["--emit", "{}/no/d.toml"], "cannot be written: No such file or directory"),
    ],
)
def test_nothing_is_emitted_of_wrong_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: list[str], said: str
) -> None:
    emit = [] if "--emit" in more else ["--emit", str(tmp_path / "d.toml")]
    given = [part.format(tmp_path) for part in more]
    ran = Ran(capsys, "size-pool", "--model", "llama-3.1-8b", "--cache-gib", "8", *WISH, *emit, *given)
    assert (ran.status, ran.out, list(tmp_path.iterdir())) == (2, "", [])
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_force_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "size-pool", "--model", "llama-3.1-8b", "--cache-gib", "8", *WISH, "--force")
    assert (ran.status, ran.err) == (
        2,
        "kvplan: --force is given without --emit, which names the file to replace\n",
    )


def test_models_and_gpus_that_are_known_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Ran(capsys, "size-pool", "--model", "qwen3-8b", "--gpu", "h1000", *WISH)
    assert wrong.status == 2
    assert "h100 is the nearest known name, --list-gpus lists all, and --gpu-memory-gib" in wrong.err
    wrong = Ran(capsys, "size-pool", "--model", "qwen3", *WISH)
    assert "qwen3.5-397b-a17b begin like that, --list-models lists all)" in wrong.err
    for command in ("size-pool", "max-request", "replay-trace"):
        models = Ran(capsys, command, "--list-models")
        assert models.status == 0
        assert "qwen3-8b" in models.out.splitlines()
        gpus = Ran(capsys, command, "--list-gpus")
        lines = {line.split()[0]: line.split()[1:] for line in gpus.out.splitlines()}
        assert lines["h100"] == ["79.65", "GiB", "driver,", "2025-06"]


@pytest.mark.parametrize("command", ["size-pool", "max-request", "replay-trace", "check-plan"])
def test_the_lists_are_json_when_asked_wherever_format_stands(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    models = Ran(capsys, command, "--list-models", "--format", "json")
    assert models.status == 0
    assert json.loads(models.out)["models"] == Ran(capsys, command, "--list-models").out.splitlines()
    gpus = Ran(capsys, command, "--format", "json", "--list-gpus")
    of_h100 = {"name": "h100", "memory_bytes": 81_559 * 2**20, "source": "driver", "date": "2025-06"}
    assert of_h100 in json.loads(gpus.out)["gpus"]


def test_who_has_no_flag_for_the_context_says_who_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = ["--model", "llama-4-scout", "--cache-gib", "40", "--max-num-seqs", "8"]
    ran = Ran(capsys, "max-request", *model)
    assert ran.status == 2
    assert "only size-pool takes that flag, and its --emit writes a deployment" in ran.err
    written = str(tmp_path / "scout.toml")
    assert Ran(capsys, "size-pool", *model, "--max-context-len", "8192", "--emit", written).status == 0
    assert Ran(capsys, "max-request", "--deployment", written).status == 0
    own = Ran(capsys, "size-pool", *model, "--max-context-len", "9000")
    assert own.status == 2
    assert "only size-pool" not in own.err


def test_fewer_requests_are_told_where_they_leave_something_for_the_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 256 requests keep 4 states each beside the cache: more than the GPU has. 18 GiB of weights fit an L4 bare.
    wish = [
        "--model",
        "bamba-9b",
        "--max-context-len",
        "4096",
        "--decode-input-tokens",
        "4",
        "--max-num-seqs",
    ]
    ran = Ran(capsys, "size-pool", "--gpu", "h100", *wish, "256")
    assert ran.status == 2
    assert "GiB; fewer requests (--max-num-seqs), more GPUs (--tp, --pp)" in ran.err
    assert Ran(capsys, "size-pool", "--gpu", "h100", *wish, "8").status == 0
    assert "GiB; more GPUs (--tp, --pp)" in Ran(capsys, "size-pool", "--gpu", "l4", *wish, "256").err


def test_more_requests_than_wanted_are_counted_in_the_memory_that_they_leave(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Each request keeps 4 states beside the cache: a pool planned for one request is not there for 760.
    line = ["size-pool", "--model", "nemotron-h-8b", "--tp", "2", "--decode-input-tokens", "4"]
    line += ["--max-context-len", "1000"]

    def sized(*more: str) -> Any:
        return Ran(capsys, *line, *more, "--format", "json").json()

    found = sized("--gpu", "b200", "--max-num-seqs", "1")
    most = found["memory"]["largest_batch"]
    assert 1 < most < found["pool"]["requests_at_once"]
    assert [sized("--gpu", "b200", "--max-num-seqs", str(n))["verdict"] for n in (most, most + 1)] == [
        "fits",
        "not_at_once",
    ]
    said = " ".join(Ran(capsys, *line, "--gpu", "b200", "--max-num-seqs", "1").out.split())
    assert f"planned for them (--max-num-seqs), at most {most:,} such requests fit" in said
    # A cache that was given is not smaller for it.
    assert sized("--cache-gib", "9", "--max-num-seqs", "1")["memory"]["largest_batch"] is None


def test_a_smaller_cache_type_that_is_enough_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(
        capsys,
        "size-pool",
        "--model",
        "qwen3-next",
        "--gpu",
        "h100",
        "--tp",
        "4",
        *WISH[:2],
        "--max-context-len",
        "65536",
    )
    assert "try     --kv-dtype fp8   64 requests at once: it fits\n" in ran.out


def test_a_pool_larger_than_the_gpu_is_neither_taken_nor_tried(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--model", "qwen3-8b", "--gpu", "h100", "--max-num-seqs", "64"]
    for command in (["size-pool", *line, "--max-context-len", "40960"], ["max-request", *line]):
        ran = Ran(capsys, *command, "--pool-gib", "500")
        assert ran.status == 2
        assert ran.err.startswith(
            "kvplan: --pool-gib makes a pool of 56,887 LCM blocks, and --gpu h100 holds "
        )
    sized = ["size-pool", *line, "--pool-gib", "4", "--max-context-len"]
    assert "try     --pool-gib " not in Ran(capsys, *sized, "40960").out  # 360 GiB
    assert "try     --pool-gib 18.15   " in Ran(capsys, *sized, "2000").out
    alone = ["max-request", *line, "--pool-gib", "4", "--tokens"]
    assert "try     --pool-gib " not in Ran(capsys, *alone, "1000000").out  # 137 GiB
    assert "try     --pool-gib 13.75   " in Ran(capsys, *alone, "100000").out


def test_a_context_beyond_the_models_own_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["size-pool", "--model", "qwen3-8b", "--max-num-seqs", "1", "--max-context-len"]
    said = "  40,961 tokens are beyond the 40,960 of its max_position_embeddings\n"
    assert said in Ran(capsys, *line, "40961").out
    assert "max_position_embeddings" not in Ran(capsys, *line, "40960").out
    assert Ran(capsys, *line, "9", "--format", "json").json()["memory"]["max_position_embeddings"] == 40_960
