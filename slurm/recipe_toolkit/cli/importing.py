"""``recipe import``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.errors import InputError, printable

if TYPE_CHECKING:
    from recipe_toolkit.importers.imported import Imported

LOSSY = 3


@click.command("import")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE...",
    shell_complete=completing.recipe_files,
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write DIR/NAME.yaml for each recipe."
)
@click.option(
    "--profile-out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what belongs in a cluster profile there.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file, on stdout.")
def import_command(files: tuple[Path, ...], out: Path | None, profile_out: Path | None, as_json: bool) -> int:
    """Turn recipes of other tools into recipes: srt-slurm's (both formats), InferenceX's, sparkrun's.

    FILE:KEY chooses variants of a file: override_x, zip_override_x[0], "tp=8,ep=true" of a sweep. Without -o the
    recipes go to stdout, each whole; with it their paths do, and the variants of a file extend its first recipe.

    The report on stderr names every key that is not carried as it stood, with its line, its value and what that
    means for the run. Exit code 0: nothing is lost; 3: something is; 1: a file is refused.
    """
    from recipe_toolkit.cli.foreign import import_path
    from recipe_toolkit.importers import output

    done: list[Imported] = []
    for file in files:
        try:
            done.append(import_path(file))
        except InputError as error:
            _refuse(file, error, as_json)
    paths = output.save(done, out, profile_out)
    for one in done:
        written = paths.get(one.file, [])
        if as_json:
            click.echo(json.dumps({**one.to_json(), "paths": written, "profile_path": paths.get("", [None])[0]}))
        else:
            _report(one, profile_out)
            _print(one, written, out, alone=len(done) == 1)
    if not as_json:
        for path in paths.get("", []):
            click.echo(path)
    if len(done) < len(files):
        return 1
    return 0 if all(one.lossless for one in done) else LOSSY


def _refuse(file: Path, error: InputError, as_json: bool) -> None:
    if as_json:
        problems = [problem.to_json() for problem in error.problems]
        click.echo(json.dumps({"file": str(file), "ok": False, "problems": problems}))
    else:
        click.echo(error.render(), err=True)


def _report(one: Imported, profile_out: Path | None) -> None:
    from recipe_toolkit.importers import notes

    for line in notes.lines(one.notes):
        click.echo(printable(line), err=True)
    for problem in one.warnings:
        click.echo(problem.render(), err=True)
    what = f"{len(one.recipes)} recipe" + "s" * (len(one.recipes) != 1) if one.recipes else "a cluster profile"
    lost = sum(note.kind == notes.LOST for note in notes.unique(one.notes))
    end = "nothing is lost" if not lost else "1 key is lost" if lost == 1 else f"{lost} keys are lost"
    click.echo(printable(f"{one.file}: {one.format}: {what}, {end}"), err=True)
    if one.profile.data and profile_out is None and one.recipes:
        click.echo("hint: --profile-out FILE writes what belongs in the cluster profile", err=True)


def _print(one: Imported, written: list[str], out: Path | None, *, alone: bool) -> None:
    """The paths; without a folder the recipes, or the profile of a file that holds nothing else."""
    from recipe_toolkit.importers import output

    if out is not None:
        for path in written:
            click.echo(path)
        return
    texts = [output.recipe_text(one, recipe, whole=True) for recipe in one.recipes]
    if not texts:
        texts = [output.profile_text([one], "imported")]
    for text in texts:
        if not alone or len(texts) > 1:
            click.echo("---")
        click.echo(text, nl=False)
