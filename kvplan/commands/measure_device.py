"""`kvplan measure-device`: what zeroing and transfers cost on a device, for `replay-trace`.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.commands.options import Format, OutputFormat
from kvplan.commands.printing import print_json, print_text


def measure_device(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write (TOML).")],
    device: Annotated[
        str, typer.Option("--device", help="The device to measure: cuda:0, or cpu for memory copies.")
    ] = "cuda:0",
    largest_mib: Annotated[
        int, typer.Option("--largest-mib", min=1, max=16384, help="The largest size to measure, in MiB.")
    ] = 256,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=1000, help="Runs of each size; the median counts.")
    ] = 7,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    format: Format = OutputFormat.text,
) -> int:
    """Measure zeroing, device-to-host and host-to-device copies by size, and write them to a file.

    Needs the extra torch. On a CPU the figures are those of memory copies, and the file says so. Exit status
    0: measured; 2: wrong input, or no such device.
    """
    from kvplan.backends.bandwidth import SIZES, measure_device
    from kvplan.backends.report import measured_json, measured_text

    if output.is_file() and not force:
        raise ValueError(f"{output} is there; give --force to replace it, or another --output")
    if output.is_dir():
        raise ValueError(f"{output} is a folder; a file is expected")
    if not output.parent.is_dir():
        raise ValueError(f"{output.parent} is no directory; {output} cannot be written there")
    largest = largest_mib << 20
    sizes = sorted({*(size for size in SIZES if size < largest), largest})
    costs = measure_device(device, sizes, repeats)
    part = output.with_name(f"{output.name}.part")
    part.write_text(costs.to_toml())
    part.replace(output)  # whole or not at all
    if format is OutputFormat.json:
        print_json(measured_json(costs, str(output)))
        return 0
    print_text(lambda width: measured_text(costs, str(output), width))
    return 0
