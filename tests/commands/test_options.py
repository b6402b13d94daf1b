"""The deployment's flags, as commands get them."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from kvplan.commands.options import deployment_options
from kvplan.deployment.fields import FLAG_FIELDS, Kind, flag

Seen = tuple[Path | None, dict[str, object]]


def given(*arguments: str) -> Seen:
    seen: list[Seen] = []
    app = typer.Typer()

    @app.command()
    @deployment_options
    def command(deployment: Path | None, overrides: dict[str, object], max_total_tokens: int = 0) -> None:
        seen.append((deployment, overrides))

    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return seen[0]


def test_flags_that_are_not_given_override_nothing() -> None:
    assert given() == (None, {})


def test_flags_arrive_under_the_name_they_were_given_under() -> None:
    file, overrides = given("--deployment", "d.toml", "--max-num-seqs", "3", "--pool-gib", "1.5")
    assert file == Path("d.toml")
    assert overrides == {"max_num_seqs": 3, "pool_gib": 1.5}


def test_a_switch_is_turned_off_by_its_no_form() -> None:
    assert given("--no-enable-mixed-chunk")[1] == {"enable_mixed_chunk": False}


def test_every_name_of_every_field_is_a_flag() -> None:
    value = {Kind.COUNT: "7", Kind.GIB: "7", Kind.CHOICE: "P"}
    for field in FLAG_FIELDS:
        for name in field.names:
            arguments = [flag(name)] + ([value[field.kind]] if field.kind in value else [])
            assert list(given(*arguments)[1]) == [name]
