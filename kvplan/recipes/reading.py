"""From a configuration file to a model."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from kvplan.recipes.config_file import ConfigFile, read_config
from kvplan.recipes.dtypes import STATE_DTYPES, spelt, weight_dtype
from kvplan.recipes.errors import RecipeError
from kvplan.recipes.families import FAMILIES
from kvplan.recipes.fields import Fields
from kvplan.recipes.model import Model

BY_HAND = (
    "declare its cache groups by hand: a [[cache_groups]] table for each in a deployment file (--deployment)"
)


def read_model(model: str | Path) -> Model:
    """Return the model of a config.json, of the folder it is in, or of a bundled name.

    Raises ``RecipeError``, one sentence, for a file that cannot be read, an architecture that is not known
    (with how to declare its groups by hand), and a field that is missing or has a wrong value.
    """
    file = read_config(model)
    name = _family_name(file)
    family = FAMILIES[name]
    fields = Fields(file, name, family.defaults)
    for foreign in family.foreign:
        if fields.has(foreign):
            raise RecipeError(
                f"{fields.named(foreign)} is given, which no {name} has; if the model is not one, {BY_HAND}"
            )
    built = family.read(fields)
    tied = fields.outer("tie_word_embeddings")
    if tied is not None and not isinstance(tied, bool):
        raise RecipeError(f"{file.source}: tie_word_embeddings is {tied!r}; true or false is needed")
    return Model(
        name=file.name,
        family=name,
        source=file.source,
        layers=built.layers,
        draft_layer=built.draft_layer,
        num_draft_layers=built.num_draft_layers,
        hidden_size=fields.count("hidden_size"),
        vocab_size=fields.count("vocab_size"),
        widest_layer=max(built.widest_layer, fields.count("hidden_size")),
        tied_embeddings=tied is True,
        max_position_embeddings=fields.optional_count("max_position_embeddings", "model_max_length"),
        dtype=_dtype(fields),
        state_dtype=_state_dtype(fields),
        quantisation=_quantisation(fields),
        folder=file.folder,
    )


def _family_name(file: ConfigFile) -> str:
    for values in (file.values, file.outer):
        name = values.get("model_type")
        if isinstance(name, str) and name in FAMILIES:
            return name
    given = file.values.get("model_type") or file.outer.get("model_type")
    classes = file.outer.get("architectures") or file.values.get("architectures")
    known: dict[str, str] = {}
    for name, family in FAMILIES.items():
        for one in family.architectures:
            known.setdefault(one, name)
    listed = [c for c in classes if isinstance(c, str)] if isinstance(classes, list) else []
    if given is None:
        for one in listed:
            if one in known:
                return known[one]
    if given is None and not listed:
        raise RecipeError(
            f"{file.source}: model_type is missing, and so is architectures; a model's config.json is needed"
        )
    named = f"model_type {given!r}" if given is not None else f"architectures {listed}"
    more = f" ({', '.join(listed)})" if given is not None and listed else ""
    near = get_close_matches(str(given or listed[0]), [*FAMILIES, *known], n=1, cutoff=0.8)
    like = f" ({near[0]} is known, and not taken for it)" if near else ""
    raise RecipeError(f"{file.source}: {named}{more} is not an architecture kvplan knows{like}; {BY_HAND}")


def _dtype(fields: Fields) -> str | None:
    value = fields.outer("torch_dtype") or fields.outer("dtype")
    return spelt(value) if isinstance(value, str) else None


def _state_dtype(fields: Fields) -> str | None:
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "ssm_state_dtype"):
        value = fields.text(name)
        if value is None or value == "auto":
            continue
        if spelt(value) not in STATE_DTYPES:
            raise fields.wrong(name, f"one of {', '.join(STATE_DTYPES)} is needed")
        return spelt(value)
    return None


def _quantisation(fields: Fields) -> str | None:
    """The type of quantised weights; None where they have the model's own type."""
    config = fields.outer("quantization_config")
    if config is None:
        return None
    if not isinstance(config, dict):
        return "unknown"
    method, bits = config.get("quant_method"), config.get("bits")
    if method == "compressed-tensors":
        groups = config.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        weights = first.get("weights") if isinstance(first, dict) else None
        if isinstance(weights, dict):
            kind = f"{weights.get('type')}{weights.get('num_bits')}"
            names = {"int4": "int4", "int8": "int8", "float8": "fp8", "float4": "nvfp4"}
            return names.get(kind, "unknown")
    if method in ("awq", "gptq") and bits in (4, 8):
        return f"int{bits}"
    if method == "modelopt":
        method = str(config.get("quant_algo", "")).lower()
    try:
        return weight_dtype(str(method))
    except RecipeError:
        return "unknown"  # refused where the weights' size is asked of it, and only there
