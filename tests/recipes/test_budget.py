"""The memory of a GPU, line by line, and the pool that is left."""

import json
import struct
from pathlib import Path

import pytest

from kvplan.deployment import load_deployment
from kvplan.recipes import Basis, MemoryPlan, RecipeError, known_gpus, plan_memory, read_model
from kvplan.scheduler import Scheduler
from tests.recipes.small import GIB, LLAMA, attention, model, written


def lines(plan: MemoryPlan) -> dict[str, tuple[int, Basis]]:
    return {line.name: (line.bytes, line.basis) for line in plan.stage.budget}


def test_lines_add_up_and_say_how_they_are_known() -> None:
    plan = plan_memory(
        "llama-3.1-8b", gpu="h200", utilisation=0.9, weights_gib=15.0, reserve_gib=4.0, max_context_len=8192
    )
    device = 143_771 * 2**20
    cache = int(device * 0.9) - 19 * GIB
    assert lines(plan) == {
        "device": (device, Basis.EXACT),
        "usable": (int(device * 0.9), Basis.GIVEN),
        "weights": (15 * GIB, Basis.GIVEN),
        "activations and graphs": (4 * GIB, Basis.GIVEN),
        "cache": (cache, Basis.EXACT),
    }
    # 8 MiB a page, and the null one.
    assert plan.usable_blocks == cache // (64 * 131_072) - 1


def test_what_nobody_gave_is_estimated() -> None:
    plan = plan_memory("llama-3.1-8b", gpu="H100", max_context_len=8192, max_num_seqs=64)
    found = lines(plan)
    assert {name: basis.value for name, (_, basis) in found.items()} == {
        "device": "exact",
        "usable": "estimated",
        "weights": "estimated",
        "activations and graphs": "estimated",
        "cache": "estimated",
    }
    assert found["weights"][0] == read_model("llama-3.1-8b").parameters * 2
    # 2 GiB, then 8,192 tokens × (4 × 4,096 + 2 × 14,336) × 2 bytes, and 64 rows of logits, 4 bytes twice.
    rule = 2 * GIB + 8_192 * (4 * 4_096 + 2 * 14_336) * 2 + 64 * 128_256 * 8
    assert found["activations and graphs"][0] == rule


def test_weights_are_divided_and_what_every_rank_has_is_not() -> None:
    one = lines(plan_memory("llama-3.1-8b", gpu="h200", max_context_len=8192))["weights"][0]
    four = lines(plan_memory("llama-3.1-8b", gpu="h200", tp=4, max_context_len=8192))["weights"][0]
    norms = (2 * 32 + 1) * 4096 * 2
    assert four == (one - norms) / 4 + norms


def test_quantised_experts_take_their_own_bits_and_the_rest_16() -> None:
    plan = plan_memory("gpt-oss-120b", gpu="h100", max_context_len=8192)
    experts = 36 * 128 * 3 * 2880 * 2880
    rest = read_model("gpt-oss-120b").parameters - experts
    assert lines(plan)["weights"][0] == experts * 4.25 / 8 + rest * 2
    assert 60 < lines(plan)["weights"][0] / GIB < 61.5  # the published checkpoint has 60.8


def test_attention_weights_are_whole_on_each_replica_of_data_parallel_attention() -> None:
    divided = lines(plan_memory("deepseek-v3", gpu="b200", tp=8, max_context_len=8192))["weights"][0]
    repeated = lines(plan_memory("deepseek-v3", gpu="b200", tp=8, dp=8, max_context_len=8192))["weights"][0]
    up = 61 * (512 * 128 * 256 + 128 * 128 * 7168 + 1536 * 128 * 192)
    assert repeated - divided == pytest.approx(up * 7 / 8, rel=1e-3)


def test_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 16_060_522_496}, "weight_map": {}}))
    plan = plan_memory(tmp_path, gpu="h100", max_context_len=8192)
    assert lines(plan)["weights"] == (16_060_522_496, Basis.EXACT)
    divided = plan_memory(tmp_path, gpu="h100", tp=2, max_context_len=8192)
    weights, basis = lines(divided)["weights"]
    assert basis is Basis.ESTIMATED
    assert weights == pytest.approx(16_060_522_496 / 2, rel=1e-3)
    index.write_text("{}")
    with pytest.raises(RecipeError, match=r"gives no metadata\.total_size"):
        plan_memory(tmp_path, gpu="h100", max_context_len=8192)


def test_headers_of_safetensors_say_what_their_files_hold(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    for number, size in enumerate((3_000, 5_000)):
        entry = {"a": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
        header = json.dumps({"__metadata__": {"format": "pt"}} | entry).encode()
        path = tmp_path / f"model-{number}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
    plan = plan_memory(tmp_path, gpu="h100", max_context_len=8192)
    assert lines(plan)["weights"] == (8_000, Basis.EXACT)
    (tmp_path / "model-0.safetensors").write_bytes(b"no")
    with pytest.raises(RecipeError, match="has no safetensors header"):
        plan_memory(tmp_path, gpu="h100", max_context_len=8192)


def test_verifying_drafts_takes_a_state_for_every_draft_token() -> None:
    plan = plan_memory("qwen3-next-80b-a3b", gpu="h200", tp=2, width=3, max_num_seqs=32, max_context_len=8192)
    snapshot = plan.state_bytes_per_snapshot
    assert lines(plan)["verification of states"][0] == 32 * 3 * snapshot
    plain = plan_memory("qwen3-next-80b-a3b", gpu="h200", tp=2, max_num_seqs=32, max_context_len=8192)
    assert "verification of states" not in lines(plain)


def test_every_stage_has_a_budget_of_its_own() -> None:
    plan = plan_memory("llama-3.1-70b", gpu="h100", pp=4, max_context_len=8192)
    weights = [stage.budget[2].bytes for stage in plan.stages]
    layer = (8192 * 8192 * 2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192) * 2
    vocabulary, norm = 8192 * 128_256 * 2, 8192 * 2
    assert weights == [20 * layer + norm + ends * vocabulary for ends in (1, 0, 0, 1)]
    assert plan.tightest in (0, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"gpu": "h2000"},
            "gpu 'h2000' is not known; h200 is the nearest known name, known_gpus lists all, and",
        ),
        ({"gpu": "zz"}, "gpu 'zz' is not known; known_gpus lists all, and gpu_memory_gib takes any size"),
        ({"gpu": "h100", "gpu_memory_gib": 80.0}, "gpu and gpu_memory_gib are given; one of them is needed"),
        ({"gpu_memory_gib": 0.0}, "gpu_memory_gib is 0.0; a number of GiB above 0"),
        ({"gpu_memory_gib": -1.0}, "gpu_memory_gib is -1.0; a number of GiB above 0"),
        ({"gpu_memory_gib": float("nan")}, "gpu_memory_gib is nan; a number of GiB above 0"),
        ({"cache_gib": 0.0}, "cache_gib is 0.0; a number of GiB above 0"),
        ({"cache_gib": (1.0, 2.0)}, "cache_gib has 2 figures; 1, or one for each of 1 stages"),
        ({"cache_gib": 0.01}, "holds 1 LCM blocks of 8,388,608 bytes; at least 2 are needed"),
        ({"gpu": "h100", "utilisation": 1.1}, "utilisation is 1.1; a share above 0"),
        ({"gpu": "h100", "weights_gib": -1.0}, "weights_gib is -1.0; a number of GiB at least 0"),
        ({"gpu": "h100", "weights_gib": 100.0}, "nothing is left for the cache: 71.7 GiB usable"),
        ({"weight_dtype": "fp3"}, "weight_dtype is 'fp3'; one of fp32, bf16"),
        (
            {"utilisation": 0.5, "cache_gib": 4.0},
            "gpu and gpu_memory_gib are absent, and utilisation is about that memory; one of them is needed",
        ),
        ({"weights_gib": 4.0}, "and weights_gib is about that memory"),
        ({"weight_dtype": "fp8"}, "and weight_dtype is about that memory"),
        ({"reserve_gib": 4.0}, "and reserve_gib is about that memory"),
        ({"gpu": "h100", "weight_dtype": "fp3"}, "weight_dtype is 'fp3'; one of fp32, bf16"),
    ],
)
def test_wrong_memory_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        plan_memory("llama-3.1-8b", max_context_len=8192, **options)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_500_gpus_worth_of_layers_do_not_fit_one(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nothing is left for the cache: .* weights 4,0\d\d\.\d GiB"):
        plan_memory(written(tmp_path, LLAMA, num_hidden_layers=10_000), gpu="h100", max_context_len=8192)


@pytest.mark.parametrize("config", [{"quant_method": "mystery"}, {}, "fp8"])
def test_a_quantisation_that_is_not_known_needs_a_size(tmp_path: Path, config: object) -> None:
    file = written(tmp_path, LLAMA, quantization_config=config)
    with pytest.raises(RecipeError, match="weight_dtype"):
        plan_memory(file, gpu="h100", max_context_len=8192)
    assert plan_memory(file, gpu="h100", weights_gib=8.0, max_context_len=8192).usable_blocks


def test_accelerators_have_a_source_and_a_date() -> None:
    for gpu in known_gpus().values():
        assert gpu.source in ("driver", "vendor")
        assert gpu.date[:2] == "20"
        assert 8 * GIB < gpu.memory_bytes < 512 * GIB


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v3.2"])
@pytest.mark.parametrize("role", ["Fused", "P", "D"])
def test_the_deployment_file_reads_back_to_the_same_scheduler(name: str, role: str, tmp_path: Path) -> None:
    plan = plan_memory(
        name, cache_gib=40, role=role, width=2, overlap=1, max_num_seqs=12, max_context_len=8192
    )
    path = tmp_path / "deployment.toml"
    path.write_text(plan.to_toml())
    deployment = load_deployment(path)
    assert deployment.config == plan.config
    assert deployment.block_bytes == plan.stage.block_bytes
    assert deployment.usable_blocks == plan.usable_blocks
    assert deployment.group_bytes == {one.group.group_id: one.page_bytes for one in plan.stage.groups}
    Scheduler(deployment.config)


def test_flags_go_over_the_plan_and_keep_their_names() -> None:
    plan = plan_memory("llama-3.1-8b", cache_gib=40, max_context_len=8192)
    deployment = plan.to_deployment({"max_num_seqs": 5, "pool_blocks": 7})
    assert deployment.config.max_batch_size == 5
    assert deployment.usable_blocks == 7
    assert deployment.sources["max_batch_size"] == "flag --max-num-seqs"
    assert deployment.sources["num_device_pages"] == "flag --pool-blocks"
    assert not deployment.sources["prefix_granularity"].startswith("flag")


def test_without_memory_the_demand_is_stated_alone() -> None:
    plan = plan_memory(model(attention()), max_num_seqs=2, max_context_len=640)
    assert (plan.usable_blocks, plan.longest_request(), plan.requests_at_once()) == (None, None, None)
    assert plan.demand is not None
    assert (plan.demand.needed_blocks, plan.demand.fits) == (2 * (640 // 64) + 2, None)
    assert plan.to_deployment().usable_blocks is None
