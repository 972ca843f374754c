"""``recipe provision``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.errors import RecipeError

if TYPE_CHECKING:
    from recipe_toolkit.provision import Progress


@click.command("provision")
@click.argument("inventory", type=click.Path(exists=True, path_type=Path), shell_complete=completing.recipe_files)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- WORDS]", shell_complete=completing.one_of(()))
@click.option("--only", "names", multiple=True, metavar="ROLE", help="This role's playbook alone; repeatable.")
@click.option("--limit", metavar="NODES", help="These nodes alone, as Ansible names them.")
@click.option("--check", "dry", is_flag=True, help="Change nothing; show what would change.")
@click.option(
    "--playbooks",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of site.yml (default: of the checkout that this runs from).",
)
def provision_command(
    inventory: Path,
    words: tuple[str, ...],
    names: tuple[str, ...],
    limit: str | None,
    dry: bool,
    playbooks: Path | None,
) -> int:
    """Make the nodes of the Ansible inventory INVENTORY ready: a front of ansible-playbook.

    Prints what changed and what was refused. WORDS are handed on to ansible-playbook. Exit code 1 if a node failed or
    was not reached.
    """
    from recipe_toolkit.provision import find_playbooks, provision

    live = sys.stderr.isatty()

    def show(progress: Progress, line: str) -> None:
        shown = progress.feed(line)
        if live:
            click.echo("\r\x1b[2K", nl=False, err=True)
        for text in shown:
            click.echo(text)
        if live and progress.task:
            click.echo(f"… {progress.task}"[:78], nl=False, err=True)

    options = [*(("--check", "--diff") if dry else ()), *(("--limit", limit) if limit else ())]
    code = provision(inventory, find_playbooks(playbooks), names, [*options, *words], show)
    if live:
        click.echo("\r\x1b[2K", nl=False, err=True)
    if code:
        raise RecipeError(f"ansible-playbook: exit code {code}", hint="run it again when that is mended: it goes on")
    return 0
