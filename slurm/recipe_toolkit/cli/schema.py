"""``recipe schema``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from recipe_toolkit.errors import RecipeError


@click.command("schema")
@click.argument("name", required=False, type=click.Choice(["recipe", "cluster", "plan", "results", "frontier"]))
@click.option(
    "--install", is_flag=True, help="Write those of recipes and profiles to .recipe/, and say how to use them."
)
def schema_command(name: str | None, install: bool) -> int:
    """Print the JSON Schema NAME, for editors and other programs.

    --install writes to the folder .recipe of this git tree, or of this folder; commit it with the recipes.
    """
    from recipe_toolkit.editors import editor_schema, install_schemas, modeline

    if install == (name is not None):
        raise click.UsageError("give NAME, or --install")
    try:
        if name is not None:
            click.echo(json.dumps(editor_schema(name), indent=2, ensure_ascii=False))
            return 0
        for path in install_schemas(Path()):
            click.echo(path)
    except OSError as error:
        raise RecipeError(f"{error.filename}: {error.strerror or error}") from error
    for kind, what in (("recipe", "a recipe"), ("cluster", "a profile")):
        click.echo(f"first line of {what} in this folder: {modeline(Path('any.yaml'), kind)}", err=True)
    return 0
