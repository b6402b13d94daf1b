"""The options that commands share: the deployment file and a flag for every field of it.

Imports nothing heavy, as every command's module does before the command runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.deployment.fields import FLAG_FIELDS, Field, Kind, flag

PANEL = "The deployment (each flag overrides the file)"

DeploymentFile = Annotated[
    Path | None,
    typer.Option(
        "--deployment", "-d", metavar="FILE", help="The deployment file (TOML).", rich_help_panel=PANEL
    ),
]


class OutputFormat(StrEnum):
    """How a command prints its result."""

    text = "text"
    json = "json"


# Eager, so that an option that prints and exits knows of it, in whichever order they are given.
Format = Annotated[OutputFormat, typer.Option("--format", is_eager=True, help="Text for people, or JSON.")]

_TYPES: dict[Kind, type] = {Kind.COUNT: int, Kind.SWITCH: bool, Kind.GIB: float, Kind.CHOICE: str}


def deployment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the options ``--deployment FILE`` and a flag for each field, under each of its names.

    ``command`` takes them as its last two parameters, ``deployment: Path | None`` and
    ``overrides: dict[str, object]`` (the flags that were given, by the name they were given under), and hands
    them to ``load_deployment``. Its other parameters are its own.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [p for name, p in signature.parameters.items() if name not in ("deployment", "overrides")]
    flags = _parameters({p.name for p in own})
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    file = inspect.Parameter(
        "deployment", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=DeploymentFile
    )

    @wraps(command)
    def with_overrides(**given: Any) -> Any:
        overrides = given_flags({p.name: given.pop(p.name) for p in flags})
        return command(**given, overrides=overrides)

    parameters = [*named, file, *flags]
    with_overrides.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_overrides.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_overrides


def given_flags(values: Mapping[str, object]) -> dict[str, object]:
    """Return the flags of ``values`` that were given, in the order of the fields; the others are None."""
    return {name: value for name, value in values.items() if value is not None}


def _parameters(taken: set[str]) -> list[inspect.Parameter]:
    """A keyword parameter for each name of each field. An alias is an option of its own, so that giving two
    names of one field is seen; the help shows it beside the name."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_TYPES[field.kind] | None, _option(field, name)],
        )
        for field in FLAG_FIELDS
        for name in field.names
        if name not in taken
    ]


def _option(field: Field, name: str) -> Any:
    text = field.help
    if field.aliases:
        text += f" Also {', '.join(flag(alias) for alias in field.aliases)}."
    declared = f"{flag(name)}/--no-{name.replace('_', '-')}" if field.kind is Kind.SWITCH else flag(name)
    return typer.Option(
        declared,
        help=text,
        hidden=name != field.name,
        metavar="|".join(field.choices) or None,
        rich_help_panel=PANEL,
    )
