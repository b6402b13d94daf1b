"""The command line: mounts the commands, nothing else."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvplan import __version__
from kvplan.commands import errors
from kvplan.commands.check_plan import check_plan
from kvplan.commands.compare import compare
from kvplan.commands.explain_round import explain_round
from kvplan.commands.max_request import max_request
from kvplan.commands.measure_device import measure_device
from kvplan.commands.prefix import prefix
from kvplan.commands.replay_trace import replay_trace
from kvplan.commands.report import report
from kvplan.commands.retractions import retractions
from kvplan.commands.size_pool import size_pool

app = typer.Typer(
    name="kvplan",
    help="Plan an LLM engine's KV-cache pool without a GPU.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich for a help text takes longer than the help text
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("size-pool", short_help="The pool that a batch needs; what a pool holds.")(size_pool)
app.command("max-request", short_help="The longest request that a pool admits.")(max_request)
app.command("replay-trace", short_help="A trace through the engine's scheduler.")(replay_trace)
app.command("check-plan", short_help="Carry plans out on real memory; prove them safe.")(check_plan)
app.command("measure-device", short_help="What zeroing and transfers cost on a device.")(measure_device)
app.command("explain-round", short_help="Why the scheduler did what it did in a round.")(explain_round)
app.command("report", short_help="The summary of a kept run again.")(report)
app.command("retractions", short_help="What retractions cost, and what spares them.")(retractions)
app.command("compare", short_help="Two kept runs side by side.")(compare)
app.command("prefix", short_help="What prompts found cached, and why the rest missed.")(prefix)


def _version(asked: bool) -> None:
    if asked:
        print(f"kvplan {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def kvplan(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Plan an LLM engine's KV-cache pool without a GPU."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(errors.USAGE)


def main() -> None:
    """Run the command line of this process and exit with its status."""
    sys.exit(errors.run(lambda arguments: app(arguments, standalone_mode=False)))


if __name__ == "__main__":
    main()
