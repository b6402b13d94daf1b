"""The options that describe a model on its GPUs, for commands that take a deployment.

Imports nothing heavy, as every command's module does before the command runs.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.emitted import check_new, write_whole
from kvplan.commands.options import OutputFormat, given_flags
from kvplan.deployment.fields import FLAG_FIELDS, POOL, flag

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.recipes import MemoryPlan

PANEL = "A model on its GPUs (instead of a deployment file)"

# Name, type, metavar and help of each flag, under the names of `plan_memory`.
_FLAGS: tuple[tuple[str, type, str | None, str], ...] = (
    ("model", str, "MODEL", "A config.json, the folder it is in, or the name of a bundled one."),
    ("gpu", str, "NAME", "The accelerator: h100, h200, b200, a100, mi300x, ..."),
    ("gpu_memory_gib", float, "GIB", "Memory of each GPU instead."),
    ("cache_gib", str, "GIB[,GIB...]", "Memory of the cache on each GPU instead; or one for each stage."),
    ("utilisation", float, "SHARE", "The share of the memory that may be used. [0.9]"),
    ("weights_gib", float, "GIB", "Weights on each GPU; else from the checkpoint or the parameter count."),
    ("weight_dtype", str, "TYPE", "Type of the weights: bf16, fp8, int8, int4, mxfp4, nvfp4, ..."),
    ("reserve_gib", float, "GIB", "Activations and graphs on each GPU; else by rule."),
    ("tp", int, "N", "GPUs that a layer is divided over. [1]"),
    ("pp", int, "N", "Pipeline stages. [1]"),
    ("pp_layers", str, "N,N...", "Layers of each stage; else an even split."),
    ("dp", int, "N", "Attention replicas within the tp GPUs, each with its own requests. [1]"),
    ("kv_dtype", str, "TYPE", "Type of the cache: bf16, fp16, fp8, fp8_e5m2, mxfp8, int8; else the model's."),
    ("state_dtype", str, "TYPE", "Type of recurrent states: fp32, bf16, fp16; else the model's, or fp32."),
    ("page_tokens", int, "N", "Tokens of a page of attention. [64]"),
    ("draft_layers", int, "N", "Draft layers; else the model's own when a decode step has several tokens."),
)

_PLACES = {name: known.place for known in FLAG_FIELDS for name in known.names}
FLAG_TYPES: dict[str, type] = {name: kind for name, kind, _, _ in _FLAGS}


@dataclass(frozen=True)
class ModelFlags:
    """What was given of a model, under the names of ``plan_memory``.

    ``emit`` is where to write the deployment, over what is there with ``force``.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    emit: Path | None = None
    force: bool = False

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> ModelFlags:
        """Return the model's flags among ``options``, which loses them."""
        found = {name: options.pop(name, None) for name in (*FLAG_TYPES, "emit")}
        written = found.pop("emit")
        return cls(given_flags(found), written)

    def load(
        self,
        deployment: Path | None,
        overrides: dict[str, object],
        max_context_len: int | None = None,
        batch_needed: bool = False,
    ) -> tuple[Deployment, MemoryPlan | None]:
        """Return the deployment, of a file or of a model, and the plan of the model.

        ``batch_needed`` says that a batch size must be among the flags. Raises ``ValueError``, also if
        ``write`` could not write.
        """
        from kvplan.deployment import load_deployment

        if self.emit is not None:
            check_new(self.emit, "--emit", self.force)

        if "model" not in self.given:
            if self.given:
                name = flag(next(iter(self.given)))
                raise ValueError(f"{name} is given without --model, which names the model it is about")
            loaded, plan = load_deployment(deployment, overrides), None
        elif deployment is not None:
            raise ValueError(f"--model {self.given['model']} and --deployment {deployment}; give one of them")
        else:
            loaded, plan = self._planned(overrides, max_context_len, batch_needed)
        return loaded, plan

    def write(self, deployment: Deployment) -> None:
        """Write the deployment where it was asked for; to be called once nothing can be wrong any more."""
        if self.emit is not None:
            write_whole(self.emit, deployment.to_toml(), "--emit", self.force)

    def _planned(
        self, overrides: dict[str, object], max_context_len: int | None, batch_needed: bool
    ) -> tuple[Deployment, MemoryPlan]:
        from kvplan.recipes import RecipeError, plan_memory

        by_place = {known.place: name for known in FLAG_FIELDS for name in known.names if name in overrides}
        if batch_needed and "max_batch_size" not in by_place:
            raise ValueError("max_batch_size is missing; give the wanted requests as --max-num-seqs")
        options: dict[str, Any] = {name: value for name, value in self.given.items() if name != "model"}
        if "cache_gib" in options:
            options["cache_gib"] = _numbers(options["cache_gib"], "--cache-gib", float)
        if "pp_layers" in options:
            options["pp_layers"] = _numbers(options["pp_layers"], "--pp-layers", int)
        named = {}  # how the command line names what the recipe does by its own names, or the engine's
        for place, name in (
            ("max_batch_size", "max_num_seqs"),
            ("max_scheduled_tokens", "max_scheduled_tokens"),
            ("decode_input_tokens", "width"),
            ("overlap_schedule_depth", "overlap"),
            ("prefix_granularity", "prefix_tokens"),
            ("role", "role"),
        ):
            named[place] = named[name] = by_place.get(place, place)
            if place in by_place:
                options[name] = overrides[by_place[place]]
        prefix = options.get("prefix_tokens")
        if prefix and "page_tokens" not in options and prefix % 64:
            options["page_tokens"] = prefix  # the default page would not divide it
        try:
            plan = plan_memory(self.given["model"], max_context_len=max_context_len, **options)
        except RecipeError as error:
            sentence = in_flags(str(error), named)
            if max_context_len is None and "--max-context-len" in sentence:
                sentence += (
                    "; only size-pool takes that flag, and its --emit writes a deployment for the others"
                )
            raise type(error)(sentence) from None
        flags = dict(overrides)
        if plan.ranks.dp > 1:  # a deployment is one attention replica's, and has its part of the batch
            flags.pop(by_place.get("max_batch_size", ""), None)
        memory = ("gpu", "gpu_memory_gib", "cache_gib")
        source = " ".join(f"{flag(n)} {self.given[n]}" for n in memory if n in self.given)
        if POOL in by_place:
            source = ""
        deployment = plan.to_deployment(flags, source)
        pool, most = deployment.usable_blocks, plan.usable_blocks
        on_gpu = [n for n in ("gpu", "gpu_memory_gib") if n in self.given]
        if on_gpu and pool is not None and most is not None and pool > most:
            name = next(flag(name) for name, place in _PLACES.items() if place == POOL and name in overrides)
            given = f"{flag(on_gpu[0])} {self.given[on_gpu[0]]}"
            raise ValueError(
                f"{name} makes a pool of {pool:,} LCM blocks, and {given} holds {most:,}; a smaller pool, or "
                f"{name} alone, is needed"
            )
        return deployment, plan


def in_flags(sentence: str, also: Mapping[str, str] = {}) -> str:
    """Return a sentence about arguments of ``plan_memory`` with the flags that they are on a command line.

    ``also`` are other names of flags. A name that is a word as well counts at the beginning alone, and none does
    inside a path.
    """
    names = {name: name for name in (*FLAG_TYPES, "max_context_len", "max_total_tokens")} | dict(also)
    names |= {"known_gpus": "list_gpus", "bundled_models": "list_models"}
    certain = [name for name in names if "_" in name or name in ("tp", "pp", "dp")]
    inside = re.compile(rf"(?<![\w/.'=-])({'|'.join(certain)})(?![\w/.'=-])")
    first = re.compile(rf"^({'|'.join(set(names) - set(certain))})(?= is | and | ')")
    for pattern in (first, inside):
        sentence = pattern.sub(lambda match: flag(names[match[0]]), sentence)
    return sentence


def batch_flag(overrides: Mapping[str, object]) -> str:
    """Return the flag that the batch size was given by, which has several names."""
    names = next(known.names for known in FLAG_FIELDS if known.name == "max_batch_size")
    return flag(next((name for name in names if name in overrides), names[0]))


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the options of a model, which it takes as ``model: ModelFlags``.

    Goes below ``deployment_options``, whose two parameters stay the command's last ones. A ``force`` of the
    command's own is about the deployment's file too.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [p for name, p in signature.parameters.items() if name not in ("model", "deployment", "overrides")]
    last = [signature.parameters[name] for name in ("deployment", "overrides")]
    flags = [_parameter(*one) for one in _FLAGS]
    emit = inspect.Parameter(
        "emit",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None,
            typer.Option(
                "--emit",
                metavar="FILE",
                help="Write the deployment there, for --deployment.",
                rich_help_panel=PANEL,
            ),
        ],
    )
    force = inspect.Parameter(
        "force",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[
            bool, typer.Option("--force", help="Replace the file that --emit names.", rich_help_panel=PANEL)
        ],
    )
    written = [emit] if "force" in signature.parameters else [emit, force]
    lists = [_list(*one) for one in _LISTS]

    @wraps(command)
    def with_model(**given: Any) -> Any:
        for one in lists:
            given.pop(one.name)  # its callback has ended the command, if it was given
        flagged = given_flags({p.name: given.pop(p.name) for p in flags})
        path = given.pop("emit")
        replacing = given["force"] if len(written) == 1 else given.pop("force")
        if replacing and path is None and len(written) > 1:
            raise ValueError("--force is given without --emit, which names the file to replace")
        return command(**given, model=ModelFlags(flagged, path, replacing))

    keyword = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *flags, *written, *lists, *last)
    ]
    with_model.__signature__ = signature.replace(parameters=keyword)  # type: ignore[attr-defined]
    with_model.__annotations__ = {p.name: p.annotation for p in keyword}
    return with_model


def _parameter(name: str, kind: type, metavar: str | None, text: str) -> inspect.Parameter:
    option = typer.Option(flag(name), help=text, metavar=metavar, rich_help_panel=PANEL)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _list(
    name: str, lines: Callable[[], list[str]], facts: Callable[[], list[Any]], text: str
) -> inspect.Parameter:
    def show(context: typer.Context, wanted: bool) -> None:
        if wanted:
            if context.params["format"] is OutputFormat.json:
                print(json.dumps({name.removeprefix("list_"): facts()}, indent=2))
            else:
                print("\n".join(lines()))
            raise typer.Exit

    # Not eager, for --format is to be known; a needed option that is absent is missed after it all the same.
    option = typer.Option(flag(name), callback=show, help=text, rich_help_panel=PANEL)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )


def _models() -> list[str]:
    from kvplan.recipes.config_file import bundled_models

    return bundled_models()


def _gpus() -> list[dict[str, Any]]:
    from kvplan.recipes.gpus import known_gpus

    return [
        {"name": name, "memory_bytes": gpu.memory_bytes, "source": gpu.source, "date": gpu.date}
        for name, gpu in known_gpus().items()
    ]


def _gpu_lines() -> list[str]:
    gpus = _gpus()
    width = max(len(gpu["name"]) for gpu in gpus)
    return [
        f"{gpu['name']:{width}}   {gpu['memory_bytes'] / 2**30:6.2f} GiB   {gpu['source']}, {gpu['date']}"
        for gpu in gpus
    ]


_LISTS: tuple[tuple[str, Callable[[], list[str]], Callable[[], list[Any]], str], ...] = (
    ("list_models", _models, _models, "Print the names of the bundled models and exit."),
    (
        "list_gpus",
        _gpu_lines,
        _gpus,
        "Print the GPUs that are known, their memory and who says so, and exit.",
    ),
)


def _numbers(text: str, named: str, kind: type) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in str(text).split(","))
    except ValueError:
        raise ValueError(f"{named} is {text!r}; numbers with commas between them are needed") from None
