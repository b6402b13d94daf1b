"""From a model and a GPU to a pool: what each way of storing the cache holds, and what binds.

Run it: python examples/model_to_pool.py
"""

from kvplan.recipes import plan_memory

REQUESTS, CONTEXT = 64, 32_768

for kv_dtype in ("bf16", "fp8"):
    plan = plan_memory(
        "qwen3-30b-a3b",
        gpu="h100",
        tp=2,
        kv_dtype=kv_dtype,
        max_num_seqs=REQUESTS,
        max_context_len=CONTEXT,
    )
    demand, binding = plan.demand, plan.binding_group()
    assert demand is not None
    assert binding is not None
    cache = next(line for line in plan.stage.budget if line.name == "cache")
    print(f"{kv_dtype}: {plan.bytes_per_token:,} B a token on each GPU, {cache.gib:.1f} GiB ({cache.basis})")
    print(
        f"  {demand.needed_blocks:,} LCM blocks needed, {plan.usable_blocks:,} there: "
        f"{plan.requests_at_once()} of {REQUESTS} requests at once, bound by {binding[0]}"
    )

# The deployment that a replay takes: plan.to_toml(), or as a value.
deployment = plan.to_deployment({"enable_mixed_prefill_decode": True})
print(f"deployment: {deployment.usable_blocks:,} LCM blocks, {deployment.config.max_batch_size} requests")
