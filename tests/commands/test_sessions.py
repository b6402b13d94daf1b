"""Commands that play a trace themselves are told of it as `replay-trace` is, and by nothing that they ignore."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.asked import DEPLOYMENT, files, kvplan

Output = pytest.CaptureFixture[str]
HOSTED = DEPLOYMENT.replace("[[", "host_blocks = 24\n[[") + "bytes_per_page = 4096\n"


def told(capsys: Output, folder: Path, *flags: str) -> str:
    trace, deployment = files(folder, deployed=HOSTED)
    capsys.readouterr()
    status = kvplan(
        "explain-round", trace, "-d", deployment, "--request", "r9", "--all", "--format", "json", *flags
    )
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def costs(folder: Path, bytes_per_s: float) -> str:
    """A device that needs a tenth of a second for a page where it moves 40,960 bytes a second."""
    path = folder / "device.toml"
    kinds = ("zeroing", "write_back", "load_back")
    path.write_text("".join(f"[{kind}]\nlatency_s = 0.0\nbytes_per_s = {bytes_per_s}\n" for kind in kinds))
    return str(path)


def test_measured_transfer_times_are_those_of_the_rounds_that_are_explained(
    tmp_path: Path, capsys: Output
) -> None:
    quick, slow = told(capsys, tmp_path), told(capsys, tmp_path, "--device-costs", costs(tmp_path, 40_960.0))
    by_flags = told(capsys, tmp_path, "--write-back-gbps", "0.00004096", "--load-back-gbps", "0.00004096")
    assert quick != slow
    assert slow == by_flags


@pytest.mark.parametrize("flag", ["--backend=torch", "--device=cpu", "--emit=x.toml"])
def test_what_a_command_would_ignore_is_no_flag_of_it(tmp_path: Path, capsys: Output, flag: str) -> None:
    trace, deployment = files(tmp_path)
    assert kvplan("explain-round", trace, "-d", deployment, "--round", "3", flag) == 2
    assert flag.split("=")[0] in capsys.readouterr().err
