"""Every bundled model: bytes a token, bytes of state a request, and pages, as its dimensions have them."""

import pytest

from kvplan.recipes import Attention, Latent, Recurrent, bundled_models, plan_memory, read_model
from kvplan.recipes.families import FAMILIES

FP8, BF16, FP32 = 1, 2, 4

# Bytes a token of the layers that keep the whole context, and of all attention layers.
TOKEN = {
    "llama-3.1-8b": (32 * 2 * 8 * 128 * BF16,) * 2,
    "llama-3.1-70b": (80 * 2 * 8 * 128 * BF16,) * 2,
    "mistral-7b-v0.1": (0, 32 * 2 * 8 * 128 * BF16),
    "mixtral-8x7b": (32 * 2 * 8 * 128 * BF16,) * 2,
    "qwen2.5-7b": (28 * 2 * 4 * 128 * BF16,) * 2,
    "qwen3-8b": (36 * 2 * 8 * 128 * BF16,) * 2,
    "qwen3-30b-a3b": (48 * 2 * 4 * 128 * BF16,) * 2,
    "deepseek-v2-lite": (27 * (512 + 64) * BF16,) * 2,
    "deepseek-v3": (61 * (512 + 64) * BF16,) * 2,
    # An index key of 128 in 8 bits and its scale in 32, in every layer.
    "deepseek-v3.2": (61 * ((512 + 64) * BF16 + 128 * FP8 + FP32),) * 2,
    "kimi-k2": (61 * (512 + 64) * BF16,) * 2,
    "kimi-linear-48b-a3b": (7 * (512 + 64) * BF16,) * 2,
    "gpt-oss-20b": (12 * 2 * 8 * 64 * BF16, 24 * 2 * 8 * 64 * BF16),
    "gpt-oss-120b": (18 * 2 * 8 * 64 * BF16, 36 * 2 * 8 * 64 * BF16),
    "gemma-2-9b": (21 * 2 * 8 * 256 * BF16, 42 * 2 * 8 * 256 * BF16),
    "gemma-3-27b": (10 * 2 * 16 * 128 * BF16, 62 * 2 * 16 * 128 * BF16),
    "command-r7b": (8 * 2 * 8 * 128 * BF16, 32 * 2 * 8 * 128 * BF16),
    "qwen3-next-80b-a3b": (12 * 2 * 2 * 256 * BF16,) * 2,
    "qwen3.5-397b-a17b": (15 * 2 * 2 * 256 * BF16,) * 2,
    "nemotron-h-8b": (4 * 2 * 8 * 128 * BF16,) * 2,
    "bamba-9b": (3 * 2 * 8 * 128 * BF16,) * 2,
    "jamba-v0.1": (4 * 2 * 8 * 128 * BF16,) * 2,
    "falcon-h1-7b": (44 * 2 * 2 * 128 * BF16,) * 2,
    "llama-4-scout": (48 * 2 * 8 * 128 * BF16,) * 2,
}

# Bytes of one snapshot of all recurrent layers: the state in 32 bits, the convolution's inputs in 16.
SNAPSHOT = {
    "kimi-linear-48b-a3b": 20 * (32 * 128 * 128 * FP32 + 3 * 32 * 128 * 3 * BF16),
    "qwen3-next-80b-a3b": 36 * (32 * 128 * 128 * FP32 + (2 * 16 * 128 + 32 * 128) * 3 * BF16),
    "qwen3.5-397b-a17b": 45 * (64 * 128 * 128 * FP32 + (2 * 16 * 128 + 64 * 128) * 3 * BF16),
    "nemotron-h-8b": 24 * (128 * 64 * 128 * FP32 + (128 * 64 + 2 * 8 * 128) * 3 * BF16),
    "bamba-9b": 29 * (128 * 64 * 128 * FP32 + (128 * 64 + 2 * 1 * 128) * 3 * BF16),
    "jamba-v0.1": 28 * (8192 * 16 * FP32 + 8192 * 3 * BF16),
    "falcon-h1-7b": 44 * (24 * 128 * 256 * FP32 + (24 * 128 + 2 * 1 * 256) * 3 * BF16),
}

# Parameters as published, in billions, to the digits that are.
PARAMETERS = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "mistral-7b-v0.1": 7.24,
    "mixtral-8x7b": 46.7,
    "qwen2.5-7b": 7.61,
    "qwen3-8b": 8.19,
    "qwen3-30b-a3b": 30.5,
    "deepseek-v2-lite": 15.7,
    "deepseek-v3": 671,
    "kimi-k2": 1026,
    "kimi-linear-48b-a3b": 49.1,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "gemma-2-9b": 9.24,
    "gemma-3-27b": 27.0,
    "command-r7b": 8.03,
    "qwen3-next-80b-a3b": 79.7,
    "nemotron-h-8b": 8.10,
    "bamba-9b": 9.78,
    "jamba-v0.1": 51.6,
    "falcon-h1-7b": 7.59,
    "llama-4-scout": 107.8,
}


def test_every_bundled_model_is_checked_here() -> None:
    assert set(TOKEN) == set(bundled_models())


def test_every_family_is_bundled() -> None:
    covered = {read_model(name).family for name in bundled_models()}
    readers = {FAMILIES[name].read for name in covered}
    assert {family.read for family in FAMILIES.values()} == readers


@pytest.mark.parametrize("name", TOKEN)
def test_bytes_a_token(name: str) -> None:
    plan = plan_memory(name, max_context_len=8_192)
    assert (plan.bytes_per_token, plan.row_bytes_per_token) == TOKEN[name]


@pytest.mark.parametrize("name", TOKEN)
def test_bytes_of_state(name: str) -> None:
    plan = plan_memory(name, max_context_len=8_192)
    snapshot = SNAPSHOT.get(name, 0)
    assert plan.state_bytes_per_snapshot == snapshot
    # Four snapshots at the worst moment: the one before, the checkpoint, the end of the prompt, one ahead.
    assert plan.state_bytes_per_request == 4 * snapshot


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_published(name: str) -> None:
    published = PARAMETERS[name]
    assert read_model(name).parameters / 1e9 == pytest.approx(
        published, rel=1e-3 if published > 100 else 5e-3
    )


@pytest.mark.parametrize(
    ("name", "pages"),
    [
        # 4 requests of 8,192 tokens in pages of 64: 4 × 128 and an open page each; a state takes 4 pages.
        ("llama-3.1-8b", {"full_attention": 4 * 128 + 4}),
        ("deepseek-v3.2", {"full_attention": 4 * 128 + 4}),
        # A window of 128: (127 + 1 + 63) / 64 → 3 pages each, 2 to look back, and a chunk of 8,192 in flight.
        ("gpt-oss-20b", {"full_attention": 516, "sliding_128": 4 * 3 + 2 + 128}),
        # A window of 1,024: (1,023 + 1 + 63) / 64 → 17 each, 16 to look back.
        ("gemma-3-27b", {"full_attention": 516, "sliding_1024": 4 * 17 + 16 + 128}),
        ("command-r7b", {"full_attention": 516, "sliding_4096": 4 * 65 + 64 + 128}),
        ("qwen3-next-80b-a3b", {"full_attention": 516, "linear_0": 16, "linear_1": 16, "linear_2": 16}),
        ("kimi-linear-48b-a3b", {"full_attention": 516, "linear_0": 16, "linear_1": 16, "linear_2": 16}),
        ("nemotron-h-8b", {"full_attention": 516} | {f"mamba_{at}": 16 for at in range(6)}),
        ("bamba-9b", {"full_attention": 516} | {f"mamba_{at}": 16 for at in range(10)}),
        ("jamba-v0.1", {"full_attention": 516} | {f"mamba_{at}": 16 for at in range(7)}),
        ("falcon-h1-7b", {"full_attention": 516, "mamba": 16}),
    ],
)
def test_pages_of_four_requests(name: str, pages: dict[str, int]) -> None:
    plan = plan_memory(name, max_num_seqs=4, max_context_len=8_192)
    assert plan.demand is not None
    ids = [group.group_id for group in plan.config.cache_groups]
    assert dict(zip(ids, plan.demand.pages, strict=True)) == pages


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gemma-3-27b", [at for at in range(62) if at % 6 == 5]),
        ("gemma-2-9b", list(range(1, 42, 2))),
        ("command-r7b", list(range(3, 32, 4))),
        ("gpt-oss-20b", list(range(1, 24, 2))),
        ("qwen3-next-80b-a3b", list(range(3, 48, 4))),
        ("kimi-linear-48b-a3b", [3, 7, 11, 15, 19, 23, 26]),
        ("nemotron-h-8b", [7, 18, 29, 40]),
        ("bamba-9b", [9, 18, 27]),
        ("jamba-v0.1", [4, 12, 20, 28]),
        ("falcon-h1-7b", list(range(44))),
        ("mistral-7b-v0.1", []),
    ],
)
def test_layers_with_full_attention(name: str, layers: list[int]) -> None:
    def keeps_all(mixer: Attention | Latent | Recurrent) -> bool:
        return isinstance(mixer, Latent) or (isinstance(mixer, Attention) and mixer.window is None)

    found = [at for at, layer in enumerate(read_model(name).layers) if any(map(keeps_all, layer.mixers))]
    assert found == layers
