"""A model's config.json, found and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from kvplan.recipes.errors import RecipeError

BUNDLED = Path(__file__).parent / "models"
NEEDED = "a config.json, the folder it is in, or a bundled name"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says: ``values`` of the language model, ``outer`` of what it is nested in (or the same).

    ``nested`` is the name of the table the values stand in, "" at the top.
    """

    name: str
    source: str
    values: Mapping[str, object]
    outer: Mapping[str, object]
    nested: str
    folder: Path | None


def bundled_models() -> list[str]:
    """Return the names of the configurations that come with kvplan."""
    return sorted(path.stem for path in BUNDLED.glob("*.json"))


def read_config(model: str | Path) -> ConfigFile:
    """Return the configuration of a file, of a folder's config.json, or of a bundled name, in this order.

    The beginning of a bundled name will do where only one begins like that.

    Raises ``RecipeError`` if there is none of it, or it cannot be read or is no JSON object.
    """
    if not str(model).strip():
        raise RecipeError(f"model is {str(model)!r}; {NEEDED} is needed (bundled_models lists those)")
    try:
        path = Path(model)
        if path.is_dir():
            return _read(path / "config.json", _folder_name(path), path)
        if path.exists():
            beside = path.parent if path.name == "config.json" else None
            name = _folder_name(path.parent) if path.name == "config.json" else path.stem
            return _read(path, name, beside)
    except ValueError as error:  # a path with a null byte; our own errors are of this kind too
        if isinstance(error, RecipeError):
            raise
        raise RecipeError(f"model is {str(model)!r}, which is not a path: {error}") from None
    except OSError as error:
        raise RecipeError(f"{model} cannot be read: {error.strerror or error}") from None
    name = str(model).lower()
    meant = [one for one in bundled_models() if one.startswith(name)] if name else []
    if name in meant or len(meant) == 1:
        found = name if name in meant else meant[0]
        return _read(BUNDLED / f"{found}.json", found, None)
    near = get_close_matches(name, bundled_models(), n=1, cutoff=0.4)
    hint = f"{near[0]} is the nearest bundled name, " if near else ""
    if meant:
        hint = f"{', '.join(meant)} begin like that, "
    raise RecipeError(
        f"model {str(model)!r} does not exist; {NEEDED} is needed ({hint}bundled_models lists all)"
    )


def _folder_name(folder: Path) -> str:
    """The folder's name; of a snapshot in the hub's cache, whose own is a hash, that of the model."""
    absolute = folder.absolute()
    if absolute.parent.name == "snapshots" and absolute.parent.parent.name.startswith("models--"):
        return absolute.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.resolve().name


def _read(path: Path, name: str, folder: Path | None) -> ConfigFile:
    source = name if path.parent == BUNDLED else str(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(f"{path} does not exist; a model's config.json is needed") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{path} is not UTF-8 text (byte {error.start + 1}); a model's config.json is needed"
        ) from None
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        raise RecipeError(f"{where}: not JSON: {error.msg}; a model's config.json is needed") from None
    except (ValueError, RecursionError):
        raise RecipeError(f"{path} is not JSON that can be read; a model's config.json is needed") from None
    if not isinstance(document, dict) or not document:
        raise RecipeError(f"{path} holds no JSON object; a model's config.json is needed")
    nested = document.get("text_config")
    if isinstance(nested, dict):
        return ConfigFile(name, source, nested, document, "text_config", folder)
    if nested is not None:
        raise RecipeError(f"{source}: text_config is {json.dumps(nested)[:40]}; an object is needed")
    return ConfigFile(name, source, document, document, "", folder)
