"""``recipe export``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.opening import open_run
from recipe_toolkit.cli.runs import where_options
from recipe_toolkit.errors import RecipeError
from recipe_toolkit.submit.find import roots
from recipe_toolkit.text_file import user_path


@click.command("export")
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=completing.runs)
@where_options
@click.option(
    "--to",
    "kind",
    type=click.Choice(["inferencex", "published", "results"]),
    required=True,
    help="InferenceX's result rows (JSON); items of a recipe's `published` (YAML); a results.json.",
)
@click.option(
    "--set",
    "sets",
    metavar="FIELD=VALUE",
    multiple=True,
    help="With inferencex: a field that a run does not know, as precision=fp4; repeatable.",
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(), help="Write here; stdout if not given.")
def export_command(
    names: tuple[str, ...], runs: str | None, cluster: str | None, kind: str, sets: tuple[str, ...], output: str | None
) -> int:
    """Turn the results of each RUN into another format.

    RUN is also an archive of `recipe collect`, a results.json, or a file of InferenceX's rows. Invalid points are left
    out, and named on stderr; exits with 1 if nothing is left.
    """
    from recipe_toolkit.results.as_published import published
    from recipe_toolkit.results.inferencex.write import write_rows

    said = dict(_field(item) for item in sets)
    if said and kind != "inferencex":
        raise click.UsageError("--set is for --to inferencex")
    if kind == "results" and len(names) > 1:
        raise click.UsageError("--to results takes one RUN")
    folders = roots(runs, cluster)
    found: list[dict[str, Any]] = []
    for name in names:
        results = _results(name, folders)
        if results["simulated"] and kind != "results":
            raise RecipeError(f"{results['run']} ran on the simulated engine: its figures are no measurement")
        if kind == "results":
            found.append(results)
        elif kind == "published":
            found += published(results)
        else:
            rows, left = write_rows(results, said)
            found += rows
            for line in left:
                click.echo(f"left out: {line}", err=True)
    _write(_text(kind, found), output)
    if not found:
        click.echo("nothing to export: no valid point", err=True)
    return 0 if found else 1


def _field(item: str) -> tuple[str, str]:
    name, sign, value = item.partition("=")
    if not sign or not name or not value:
        raise click.BadParameter(f"{item!r} is no FIELD=VALUE", param_hint="--set")
    return name, value


def _results(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    from recipe_toolkit.cli.report import material_of
    from recipe_toolkit.report.side import read_any_results

    path = user_path(name)
    if name.endswith(".json") and path.is_file():
        return read_any_results(path).to_json()
    return material_of(open_run(name, folders).run).results


def _text(kind: str, found: Sequence[dict[str, Any]]) -> str:
    if kind == "published":
        import yaml

        return yaml.safe_dump({"published": list(found)}, sort_keys=False, allow_unicode=True, width=120)
    data: Any = found[0] if kind == "results" else list(found)
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _write(text: str, output: str | None) -> None:
    from recipe_toolkit.rundir import write_atomic

    if output is None:
        click.echo(text, nl=False)
        return
    target = user_path(output)
    try:
        write_atomic(target, text)
    except OSError as error:
        raise RecipeError(f"cannot write {target}: {error.strerror or error}", hint="name another file") from error
    click.echo(target)
