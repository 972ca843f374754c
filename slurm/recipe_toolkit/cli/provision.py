"""``recipe provision``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing

if TYPE_CHECKING:
    from recipe_toolkit.provision import Progress


@click.command("provision")
@click.argument(
    "inventory", required=False, type=click.Path(exists=True, path_type=Path), shell_complete=completing.recipe_files
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- WORDS]", shell_complete=completing.one_of(()))
@click.option("--only", "names", multiple=True, metavar="ROLE", help="This role's playbook alone; repeatable.")
@click.option("--limit", metavar="NODES", help="These nodes alone, as Ansible names them.")
@click.option("--check", "dry", is_flag=True, help="Change nothing; show what would change.")
@click.option(
    "--playbooks",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of site.yml (default: the one that came with this program).",
)
@click.option("--list", "listing", is_flag=True, help="Print the playbooks and the example inventories; run nothing.")
@click.option("--example", metavar="NAME", help="Print an example inventory, to be made your own; run nothing.")
def provision_command(
    inventory: Path | None,
    words: tuple[str, ...],
    names: tuple[str, ...],
    limit: str | None,
    dry: bool,
    playbooks: Path | None,
    listing: bool,
    example: str | None,
) -> int:
    """Make the nodes of the Ansible inventory INVENTORY ready: a front of ansible-playbook.

    Prints what changed and what was refused. WORDS are handed on to ansible-playbook. Exit code 1 if a node failed or
    was not reached.
    """
    from recipe_toolkit.provision import find_playbooks, list_playbooks, provision, read_example

    folder = find_playbooks(playbooks)
    if listing:
        click.echo(list_playbooks(folder))
        return 0
    if example is not None:
        click.echo(read_example(folder, example), nl=False)
        return 0
    if inventory is None:
        raise click.UsageError("no inventory: --example NAME > mine.yml makes one, to put your nodes in")
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
    try:
        provision(inventory, folder, names, [*options, *words], show)
    finally:
        if live:
            click.echo("\r\x1b[2K", nl=False, err=True)
    return 0
