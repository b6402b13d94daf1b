"""Every example runs, and says what its comments say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.deployment import load_deployment
from kvplan.recipes import plan_memory

EXAMPLES = Path(__file__).parent.parent / "examples"
BF16, FP32 = 2, 4


def test_dense_gqa_costs_what_its_shape_costs() -> None:
    deployment = load_deployment(EXAMPLES / "dense_gqa.toml")
    assert deployment.group_bytes == {"full_attention": 64 * 2 * 32 * 8 * 128 * BF16}
    assert deployment.usable_blocks == 2 * 2**30 // 2**23 - 1 == 255


def test_hybrid_sliding_costs_what_its_shape_costs_and_pads_nothing() -> None:
    deployment = load_deployment(EXAMPLES / "hybrid_sliding.toml")
    layer = 64 * 2 * 8 * 256 * BF16
    assert deployment.group_bytes == {"full_attention": 8 * layer, "sliding_1024": 40 * layer}
    assert deployment.padding == {"full_attention": 0, "sliding_1024": 0}
    assert deployment.usable_blocks == 818


def test_hybrid_state_costs_what_its_shape_costs() -> None:
    deployment = load_deployment(EXAMPLES / "hybrid_state.toml")
    snapshot = 12 * (32 * 128 * 128 * FP32 + 8192 * 3 * BF16)
    attention = 64 * 12 * 2 * 2 * 256 * BF16
    linear = dict.fromkeys(("linear_0", "linear_1", "linear_2"), snapshot)
    assert deployment.group_bytes == {"full_attention": attention, **linear}
    assert deployment.padding["full_attention"] == snapshot - 16 * attention == 589_824
    assert deployment.usable_blocks == 332


def test_recipe_sizes_a_pool_and_checks_a_request() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "recipe.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "16 requests of 4,096 tokens need 217 LCM blocks:\n"
        "  full    1,056 pages   88 blocks\n"
        "  state      64 pages   64 blocks\n"
        "  window    194 pages   65 blocks\n"
        "In that pool one request alone may have 129,788 tokens.\n"
        "A prompt of 30,000 and 2,000 more tokens: 90 of 217 LCM blocks, fits.\n"
    )


def test_model_to_pool_sizes_two_caches() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "model_to_pool.py"], capture_output=True, text=True, check=True
    )
    bf16, _, fp8, needs, deployment = done.stdout.splitlines()
    token = 2 * 48 * (4 // 2) * 128  # K and V of 48 layers, 2 of 4 KV heads on each GPU, 128 wide
    assert bf16.startswith(f"bf16: {token * BF16:,} B a token on each GPU")
    assert fp8.startswith(f"fp8: {token:,} B a token on each GPU")
    pages = 64 * (32_768 // 64 + 1)  # each request has an open page of slack
    there = int(needs.split(" needed, ")[1].split()[0].replace(",", ""))
    assert needs == (
        f"  {pages:,} LCM blocks needed, {there:,} there: {there // (32_768 // 64 + 1)} of 64 requests at "
        "once, bound by full_attention"
    )
    assert deployment == f"deployment: {there:,} LCM blocks, 64 requests"


def test_small_gemma_costs_what_its_shape_costs() -> None:
    plan = plan_memory(EXAMPLES / "small_gemma", cache_gib=1, max_context_len=8192)
    layer = 2 * 4 * 128 * BF16
    assert plan.bytes_per_token == 4 * layer  # every sixth of 24 layers keeps the whole context
    assert plan.row_bytes_per_token == 24 * layer


def test_recipe_uses_the_public_api_alone() -> None:
    lines = (EXAMPLES / "recipe.py").read_text().splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports == ["from kvplan.scheduler import ("]


@pytest.mark.parametrize("name", ["dense_gqa", "hybrid_sliding", "hybrid_state"])
def test_the_comments_state_every_page_size(name: str) -> None:
    path = EXAMPLES / f"{name}.toml"
    comments = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))
    for size in load_deployment(path).group_bytes.values():
        assert f"{size:,}" in comments
