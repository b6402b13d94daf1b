"""Size a pool with the capacity model alone, then check a request against it.

    python examples/recipe.py

The model is a small hybrid: full attention, a window of 128 tokens, and a recurrent state. A page of each
spans 64 tokens; an LCM block holds 12 pages of full attention, or 3 windowed ones, or 1 snapshot.
"""

from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CapacityModel,
    SchedulerConfig,
)

CONTEXT = 4_096
BATCH = 16

config = SchedulerConfig()
config.prefix_granularity = 64
config.max_scheduled_tokens = 8_192
config.max_batch_size = BATCH
config.decode_input_tokens = 4
config.overlap_schedule_depth = 1
config.cache_groups = [
    CacheGroupConfig("full", 64, cache_blocks_per_lcm_block=12),
    CacheGroupConfig("state", 64, family=CacheGroupFamily.State),
    CacheGroupConfig(
        "window",
        64,
        retention=CacheRetention.SlidingWindow,
        sliding_window_tokens=128,
        cache_blocks_per_lcm_block=3,
    ),
]

capacity = CapacityModel(config)
pages = capacity.concurrent_group_pages(BATCH * CONTEXT, CONTEXT)
blocks = capacity.lcm_blocks_needed_for(pages)
print(f"{BATCH} requests of {CONTEXT:,} tokens need {blocks} LCM blocks:")
for group, count in zip(config.cache_groups, pages, strict=True):
    print(f"  {group.group_id:6}  {count:5,} pages  {-(-count // group.cache_blocks_per_lcm_block):3} blocks")

longest = capacity.max_single_request_tokens(blocks)
print(f"In that pool one request alone may have {longest:,} tokens.")

prompt, new_tokens = 30_000, 2_000
request = capacity.single_request_group_pages(prompt + new_tokens)
needed = capacity.lcm_blocks_needed_for(request)
verdict = "fits" if needed <= blocks else "never fits"
print(f"A prompt of {prompt:,} and {new_tokens:,} more tokens: {needed} of {blocks} LCM blocks, {verdict}.")
