"""The deployment file and the flags that override it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.deployment import Deployment, DeploymentError, load_deployment
from kvplan.scheduler import CacheRetention, CacheTransferPolicy, CapacityModel, SchedulerConfig

SETTINGS = """\
prefix_granularity = 64
max_scheduled_tokens = 8192
max_batch_size = 16
"""
FULL = """
[[cache_groups]]
group_id = "full"
block_granularity = 64
cache_blocks_per_lcm_block = 12
bytes_per_page = 1000
"""
SLIDING = """
[[cache_groups]]
group_id = "swa"
block_granularity = 64
retention = "slidingwindow"
window = 128
cache_blocks_per_lcm_block = 3
bytes_per_page = 3000
"""
STATE = """
[[cache_groups]]
group_id = "state"
block_granularity = 64
family = "STATE"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "d.toml"


def load(file: Path, text: str, **overrides: object) -> Deployment:
    file.write_text(text)
    return load_deployment(file, overrides)


def refusal(file: Path, text: str, **overrides: object) -> str:
    with pytest.raises(DeploymentError) as caught:
        load(file, text, **overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(file), "d.toml")


# --- what a file gives -----------------------------------------------------------------------------


def test_scheduler_fields_are_read_under_their_own_names(file: Path) -> None:
    config = load(file, SETTINGS + 'role = "fused"\nenable_mixed_prefill_decode = true\n' + FULL).config
    assert (config.prefix_granularity, config.max_scheduled_tokens, config.max_batch_size) == (64, 8192, 16)
    assert config.role == SchedulerConfig.Role.Fused
    assert config.enable_mixed_prefill_decode


def test_names_of_other_servers_are_aliases_with_hyphens_or_underscores(file: Path) -> None:
    text = "prefix-granularity = 64\nchunked-prefill-size = 2048\nmax_num_seqs = 3\n" + FULL
    config = load(file, text).config
    assert (config.prefix_granularity, config.max_scheduled_tokens, config.max_batch_size) == (64, 2048, 3)


def test_groups_are_read_with_enums_in_any_case_and_window_as_alias(file: Path) -> None:
    full, sliding, state = load(file, SETTINGS + FULL + SLIDING + STATE).config.cache_groups
    assert (full.kind.name, sliding.kind.name, state.kind.name) == ("FULL", "SLIDING", "STATE")
    assert sliding.retention is CacheRetention.SlidingWindow
    assert sliding.sliding_window_tokens == 128


def test_a_block_takes_the_bytes_of_the_largest_group_and_the_rest_is_padding(file: Path) -> None:
    deployment = load(file, SETTINGS + FULL + SLIDING)
    assert deployment.group_bytes == {"full": 1000, "swa": 3000}
    assert deployment.block_bytes == 12_000  # 12 pages of 1,000 bytes against 3 of 3,000
    assert deployment.padding == {"full": 0, "swa": 3_000}


def test_bytes_of_a_block_are_unknown_if_one_group_gives_none(file: Path) -> None:
    deployment = load(file, SETTINGS + FULL + STATE)
    assert deployment.group_bytes == {"full": 1000, "state": None}
    assert deployment.block_bytes is None
    assert deployment.padding == {"full": None, "state": None}


def test_without_a_pool_the_configuration_sizes_but_does_not_run(file: Path) -> None:
    deployment = load(file, SETTINGS + FULL)
    assert deployment.usable_blocks is None
    assert deployment.config.num_device_pages == 0
    assert CapacityModel(deployment.config).single_request_group_pages(128) == [2]


def test_a_transfer_policy_left_out_is_the_only_one_the_role_allows(file: Path) -> None:
    groups = load(file, SETTINGS + FULL + STATE, role="P").config.cache_groups
    assert [g.transfer_policy for g in groups] == [
        CacheTransferPolicy.FullSuffix,
        CacheTransferPolicy.LatestSnapshot,
    ]


# --- pools -----------------------------------------------------------------------------------------


def test_pool_blocks_are_usable_ones_and_the_null_one_is_added(file: Path) -> None:
    deployment = load(file, SETTINGS + "pool_blocks = 100\n" + FULL)
    assert (deployment.usable_blocks, deployment.config.num_device_pages) == (100, 101)
    assert deployment.config.cache_groups[0].total_pages == 100 * 12 + 1


def test_num_device_pages_counts_the_null_block_in(file: Path) -> None:
    deployment = load(file, SETTINGS + "num_device_pages = 100\n" + FULL)
    assert (deployment.usable_blocks, deployment.config.num_device_pages) == (99, 100)


@pytest.mark.parametrize("tokens", [1, 767, 768, 769, 40_000])
def test_pool_tokens_is_the_smallest_pool_that_admits_such_a_request_alone(file: Path, tokens: int) -> None:
    deployment = load(file, SETTINGS + FULL + SLIDING + STATE, pool_tokens=tokens)
    blocks = deployment.usable_blocks
    assert blocks is not None
    model = CapacityModel(deployment.config)
    assert model.max_single_request_tokens(blocks) >= tokens
    assert model.max_single_request_tokens(blocks - 1) < tokens


def test_pool_gib_is_rounded_down_to_blocks_less_the_null_one(file: Path) -> None:
    mebibyte_page = FULL.replace("1000", str(2**20)).replace("= 12", "= 1")
    exact = load(file, SETTINGS + "pool_gib = 1\n" + mebibyte_page)
    assert (exact.usable_blocks, exact.memory_bytes) == (1023, 2**30)
    assert load(file, SETTINGS + mebibyte_page, memory_gib=0.9999).usable_blocks == 1022


def test_a_pool_given_in_blocks_has_no_memory_budget(file: Path) -> None:
    assert load(file, SETTINGS + "pool_blocks = 9\n" + FULL).memory_bytes is None


def test_total_pages_that_are_given_are_kept(file: Path) -> None:
    deployment = load(file, SETTINGS + "pool_blocks = 9\n" + FULL + "total_pages = 50\n")
    assert deployment.config.cache_groups[0].total_pages == 50


@pytest.mark.parametrize(
    ("line", "pages"), [("host_blocks = 20", 21), ("num_host_pages = 20", 20), ("host_blocks = 0", 0)]
)
def test_the_host_pool_is_given_like_the_device_pool(file: Path, line: str, pages: int) -> None:
    deployment = load(file, SETTINGS + "pool_blocks = 9\n" + line + FULL)
    assert deployment.config.num_host_pages == pages
    assert deployment.host_blocks == max(pages - 1, 0)


def test_host_gib_is_rounded_down_to_blocks_less_the_null_one(file: Path) -> None:
    mebibyte_page = FULL.replace("1000", str(2**20)).replace("= 12", "= 1")
    assert load(file, SETTINGS + "host_gib = 2\n" + mebibyte_page).host_blocks == 2047


# --- flags over the file, and changes --------------------------------------------------------------


def test_a_flag_overrides_the_file_under_any_of_its_names(file: Path) -> None:
    deployment = load(file, SETTINGS + FULL, max_num_seqs=5)
    assert deployment.config.max_batch_size == 5


def test_a_pool_flag_replaces_the_pool_of_the_file_in_another_unit(file: Path) -> None:
    deployment = load(file, SETTINGS + "pool_gib = 4\n" + FULL, pool_blocks=7)
    assert (deployment.usable_blocks, deployment.memory_bytes) == (7, None)


def test_sources_tell_file_flag_and_default_apart(file: Path) -> None:
    sources = load(file, SETTINGS + FULL, max_num_seqs=5, pool_blocks=7).sources
    assert sources["prefix_granularity"] == str(file)
    assert sources["cache_groups"] == str(file)
    assert sources["max_batch_size"] == "flag --max-num-seqs"
    assert sources["num_device_pages"] == "flag --pool-blocks"
    assert sources["role"] == "default"


def test_with_pool_blocks_sets_the_pool_and_what_follows_from_it(file: Path) -> None:
    deployment = load(file, SETTINGS + "pool_gib = 4\n" + FULL).with_pool_blocks(7)
    assert deployment.config.num_device_pages == 8
    assert deployment.config.cache_groups[0].total_pages == 7 * 12 + 1
    assert deployment.sources["num_device_pages"] == "set by the caller"


def test_replace_leaves_the_original_as_it_was(file: Path) -> None:
    before = load(file, SETTINGS + FULL)
    after = before.replace(max_batch_size=2, decode_input_tokens=4)
    assert (after.config.max_batch_size, after.config.decode_input_tokens) == (2, 4)
    assert before.config.max_batch_size == 16


def test_replace_with_none_takes_a_field_back(file: Path) -> None:
    deployment = load(file, SETTINGS + "pool_blocks = 9\n" + FULL)
    assert deployment.replace(pool_blocks=None).usable_blocks is None
    with pytest.raises(DeploymentError, match="max_batch_size is missing"):
        deployment.replace(max_num_seqs=None)


def test_replace_refuses_a_field_that_nobody_knows(file: Path) -> None:
    deployment = load(file, SETTINGS + FULL)
    with pytest.raises(DeploymentError, match="max_batchsize is not a field here; max_batch_size"):
        deployment.replace(max_batchsize=None)


@pytest.mark.parametrize("pool", ["", "pool_blocks = 9\n", "pool_tokens = 5000\n", "pool_gib = 0.25\n"])
def test_toml_that_is_written_reads_to_the_same_deployment(file: Path, pool: str) -> None:
    odd = FULL.replace('"full"', r'"f\"\\ \u00fcl"')
    before = load(file, SETTINGS + pool + "host_blocks = 3\nrole = 'p'\n" + odd + SLIDING)
    after = load(file, before.to_toml())
    assert after.config == before.config
    assert after.group_bytes == before.group_bytes
    assert after.memory_bytes == before.memory_bytes
    assert after.to_toml() == before.to_toml()


def test_a_deployment_is_made_of_overrides_alone() -> None:
    group = {"group_id": "full", "block_granularity": 16}
    settings = {"prefix_granularity": 16, "max_scheduled_tokens": 64, "max_batch_size": 1}
    deployment = load_deployment(None, {**settings, "cache_groups": [group]})
    assert [g.group_id for g in deployment.config.cache_groups] == ["full"]


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "max_batchsize = 3",
            "d.toml: max_batchsize is not a field here; max_batch_size is the nearest known name",
        ),
        (
            "Max_Num_Seq = 3",
            "d.toml: Max_Num_Seq is not a field here; max_num_seqs is the nearest known name",
        ),
        ("chunked-prefil-size = 3", "chunked_prefill_size is the nearest known name"),
        (
            "[[cache_group]]",
            "d.toml: cache_group is not a field here; cache_groups is the nearest known name",
        ),
        ("zzz = 3", "d.toml: zzz is not a field here; no known name is like it, see the README"),
        (
            "[server]",
            "d.toml: [server] is not a table here; settings stand above all tables, and a table is [[cache_groups]]",
        ),
        ("[groups]", "d.toml: groups is not a field here; cache_groups is the nearest known name"),
        ("window = 128", "d.toml: window is not a field here; it belongs in a [[cache_groups]] table"),
        ("max_num_seqs = 3", "d.toml: max_batch_size and max_num_seqs are two names of one field"),
        ("max-batch-size = 3", "d.toml: max_batch_size and max-batch-size are two names of one field"),
        ("decode_input_tokens = true", "d.toml: decode_input_tokens is true; an integer is needed"),
        ("decode_input_tokens = 1.0", "d.toml: decode_input_tokens is 1.0; an integer is needed"),
        ("decode_input_tokens = '1'", "d.toml: decode_input_tokens is '1'; an integer is needed"),
        ("decode_input_tokens = 0", "d.toml: decode_input_tokens is 0; at least 1 is needed"),
        ("decode_input_tokens = -1", "d.toml: decode_input_tokens is -1; at least 1 is needed"),
        ("overlap_schedule_depth = 2", "d.toml: overlap_schedule_depth is 2; at most 1 is possible"),
        (
            "pool_tokens = 99999999999",
            "d.toml: pool_tokens is 99999999999; at most 2,147,483,647 is possible",
        ),
        ("role = 'both'", "d.toml: role is 'both'; one of P, D, Fused is needed"),
        ("disable_l2_cache = 1", "d.toml: disable_l2_cache is 1; true or false is needed"),
        ("pool_gib = nan", "d.toml: pool_gib is nan; a number of GiB above 0 is needed"),
        ("pool_gib = inf", "d.toml: pool_gib is inf; a number of GiB above 0 is needed"),
        ("pool_gib = 0", "d.toml: pool_gib is 0; a number of GiB above 0 is needed"),
        ("pool_gib = -4.0", "d.toml: pool_gib is -4.0; a number of GiB above 0 is needed"),
        ("pool_gib = 1e30", "d.toml: pool_gib is 1e+30 GiB; at most 1,048,576 is possible"),
        (f"pool_gib = 1{'0' * 400}", "GiB; at most 1,048,576 is possible"),
        (f"pool_gib = 1{'0' * 5000}", "d.toml: not TOML: Exceeds the limit"),
        ("pool_gib = true", "d.toml: pool_gib is true; a number of GiB is needed"),
        ("pool_gib = 0.00002", "which holds 1 LCM blocks of 12,000 bytes; at least 2 are needed"),
        ("pool_blocks = 0", "d.toml: pool_blocks is 0; at least 1 is needed"),
        ("num_device_pages = 1", "d.toml: num_device_pages is 1; at least 2 is needed"),
        ("pool_blocks = 2000000000", "page ids are 32-bit, so at most 178,956,970 blocks are possible"),
        ("pool_blocks = 9\npool_gib = 4", "d.toml: pool_blocks and pool_gib both size the pool; give one"),
        (
            "host_blocks = 9\nhost_gib = 4",
            "d.toml: host_blocks and host_gib both size the host pool; give one",
        ),
        (
            "enable_l3_storage = true\npool_blocks = 9",
            "d.toml: enable_l3_storage is set without a host cache",
        ),
    ],
)
def test_a_wrong_line_is_refused_in_one_sentence(file: Path, line: str, said: str) -> None:
    assert said in refusal(file, SETTINGS + line + "\n" + FULL)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "bytes_per_pages = 3",
            "bytes_per_pages is not a field here; bytes_per_page is the nearest known name",
        ),
        ("pool-gib = 4", "pool-gib is not a field here; it is a setting, which stands above the first [["),
        ("page_size = 64", "block_granularity and page_size are two names of one field (block_granularity)"),
        ("shard_count = 0", "shard_count is 0; at least 1 is needed"),
        ("retention = 'forever'", "retention is 'forever'; one of FullHistory, SlidingWindow is needed"),
        ("window = 128", "window is 128 but retention is FullHistory"),
        (
            "retention = 'SlidingWindow'",
            'sliding_window_tokens is missing; retention = "SlidingWindow" needs a window',
        ),
    ],
)
def test_a_wrong_line_of_a_group_names_file_and_group(file: Path, line: str, said: str) -> None:
    message = refusal(file, SETTINGS + SLIDING + FULL + line)
    assert message.startswith("d.toml: [[cache_groups]] 2 'full': " + said)


def test_what_the_engine_refuses_is_refused_with_file_and_flags(file: Path) -> None:
    message = refusal(file, SETTINGS + FULL, prefix_granularity=100)
    assert message == (
        "d.toml with --prefix-granularity: cache group 'full': block_granularity is 64; it must divide "
        "prefix_granularity (100)"
    )


def test_a_flag_is_named_as_it_was_written(file: Path) -> None:
    assert refusal(file, SETTINGS + FULL, max_num_seqs=0) == "--max-num-seqs is 0; at least 1 is needed"
    both = refusal(file, SETTINGS + FULL, max_num_seqs=1, max_batch_size=1)
    assert both.startswith("--max-num-seqs and --max-batch-size are two names of one field")


def test_two_groups_of_one_name_are_refused(file: Path) -> None:
    assert "group_id is 'full' again; names must differ" in refusal(file, SETTINGS + FULL + FULL)


def test_a_group_without_a_name_is_refused_by_its_number(file: Path) -> None:
    message = refusal(file, SETTINGS + FULL.replace('group_id = "full"', ""))
    assert message == "d.toml: [[cache_groups]] 1: group_id is missing; every cache group needs it"


def test_memory_without_bytes_per_page_names_the_groups_that_lack_it(file: Path) -> None:
    message = refusal(file, SETTINGS + "pool_gib = 4\n" + FULL + STATE)
    assert (
        "pool_gib needs the bytes of an LCM block, but cache group state gives no bytes_per_page" in message
    )


@pytest.mark.parametrize("field", ["prefix_granularity", "max_scheduled_tokens", "max_batch_size"])
def test_a_missing_setting_is_named_with_its_flag(file: Path, field: str) -> None:
    text = "".join(line for line in SETTINGS.splitlines(True) if not line.startswith(field)) + FULL
    flag = "--" + field.replace("_", "-")
    assert refusal(file, text) == f"d.toml: {field} is missing; give it in the file or as {flag}"


def test_missing_groups_are_told_how_to_be_declared(file: Path) -> None:
    assert "cache_groups is missing; declare each cache group as a [[cache_groups]]" in refusal(
        file, SETTINGS
    )
    assert "at least one [[cache_groups]] table is needed" in refusal(file, SETTINGS + "cache_groups = []")
    assert "3 is not a table" in refusal(file, SETTINGS + "cache_groups = [3]")


def test_groups_under_two_spellings_are_refused(file: Path) -> None:
    other = FULL.replace("cache_groups", "cache-groups")
    assert "cache_groups and cache-groups are one field; give one" in refusal(file, SETTINGS + FULL + other)


def test_a_syntax_error_has_line_and_column(file: Path) -> None:
    assert refusal(file, "prefix_granularity = 64\nmax_batch_size 3\n").startswith(
        "d.toml, line 2, column 16: not TOML: "
    )


def test_a_syntax_error_at_the_end_has_the_last_line(file: Path) -> None:
    twice = SETTINGS + "max_batch_size = 3"
    assert refusal(file, twice) == "d.toml, line 4: not TOML: Cannot overwrite a value"


@pytest.mark.parametrize("name", [" ", r"a\nb", r"a\u001b[31m", r"\u007f"])
def test_a_name_that_cannot_be_printed_is_refused(file: Path, name: str) -> None:
    message = refusal(file, SETTINGS + FULL.replace('"full"', f'"{name}"'))
    assert message.endswith("; a string of printable characters is needed")


def test_an_empty_file_is_told_what_a_deployment_needs(file: Path) -> None:
    assert refusal(file, "# nothing\n").startswith("d.toml is empty; a deployment needs prefix_granularity,")


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# \xff\n")
    for name, said in (
        ("latin.toml", "is not UTF-8 text (byte 3)"),
        ("missing.toml", "does not exist"),
        ("", "is a directory"),
        ("nul\0.toml", "is not a path"),
    ):
        with pytest.raises(DeploymentError) as caught:
            load_deployment(tmp_path / name)
        assert said in str(caught.value)


def test_a_byte_order_mark_is_not_part_of_the_file(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + (SETTINGS + FULL).encode())
    assert load_deployment(file).config.max_batch_size == 16
