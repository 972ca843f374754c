"""``recipe check``."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_toolkit.cli import completing

if TYPE_CHECKING:
    from recipe_toolkit.check.model import Check, Report
    from recipe_toolkit.cluster import Cluster
    from recipe_toolkit.plan.expect import Expect
    from recipe_toolkit.submit.probing import Target


@click.command("check")
@click.argument(
    "file", required=False, type=click.Path(readable=False, path_type=Path), shell_complete=completing.recipe_files
)
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="The cluster profile (default: $RECIPE_CLUSTER, else local).",
)
@click.option("-s", "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Change a field; repeatable.")
@click.option("--hosts", metavar="HOST,...", help="Ask these nodes by ssh (default: check.hosts of the profile).")
@click.option("--slurm", "by_slurm", is_flag=True, help="Ask nodes that Slurm gives, by one step of a short job.")
@click.option("-N", "--nodes", type=click.IntRange(min=1), metavar="N", help="How many (default: as the recipe needs).")
@click.option("-F", "--ssh-config", metavar="FILE", help="ssh's configuration file, as for `ssh -F`.")
@click.option("--only", metavar="ID,...", help="These checks alone.")
@click.option("--skip", metavar="ID,...", help="Leave these checks out.")
@click.option("--deep", is_flag=True, help="Hash the weights again, look inside images: minutes.")
@click.option("--list", "listing", is_flag=True, help="List the checks; no node is asked.")
@click.option("--plan", "planning", is_flag=True, help="Print what would be run on the nodes; none is asked.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_command(
    file: Path | None,
    cluster: str | None,
    sets: tuple[str, ...],
    hosts: str | None,
    by_slurm: bool,
    nodes: int | None,
    ssh_config: str | None,
    only: str | None,
    skip: str | None,
    deep: bool,
    listing: bool,
    planning: bool,
    as_json: bool,
) -> int:
    """Check that nodes are fit to serve, or say which is not and why.

    What must hold comes from the profile, and from recipe FILE where one is given. Nodes are read, never changed.
    Exit code 0 only if at least one check was made and all passed; what cannot be told is no pass.
    """
    from dataclasses import replace

    checks = _chosen(only, deep or listing)
    if listing:
        _list(checks, as_json)
        return 0
    site, expect, needed = _expected(file, cluster, sets)
    left_out = tuple(check.id for check in _named(skip, "--skip"))
    expect = replace(expect, skip=(*expect.skip, *left_out))
    if by_slurm:
        report = _by_slurm(expect, site, nodes or needed, checks, deep, planning)
        if report is None:
            return 0
        show(report, as_json)
        return 0 if report.ok else 1
    if nodes is not None:
        raise click.UsageError("-N is for --slurm; --hosts names nodes")
    targets = _targets(site, hosts, ssh_config)
    if planning:
        _plan(expect, checks, targets, deep, as_json)
        return 0
    from recipe_toolkit.submit.preflight import preflight

    report = preflight(expect, targets, checks, deep=deep)
    show(report, as_json)
    return 0 if report.ok else 1


def _chosen(only: str | None, deep: bool) -> list[Check]:
    from recipe_toolkit.check.catalog import select

    named = tuple(check.id for check in _named(only, "--only"))
    return list(select(named, deep or any(check.deep for check in _named(only, "--only"))))


def _named(words: str | None, option: str) -> list[Check]:
    from recipe_toolkit.check.catalog import BY_ID
    from recipe_toolkit.faults import did_you_mean

    found = []
    for word in filter(None, (item.strip().upper() for item in (words or "").split(","))):
        if word not in BY_ID:
            meant = did_you_mean(word, BY_ID)
            raise click.UsageError(f"{option}: no such check {word}: {meant or '`recipe check --list` has them'}")
        found.append(BY_ID[word])
    return found


def _expected(file: Path | None, cluster: str | None, sets: tuple[str, ...]) -> tuple[Cluster, Expect, int | None]:
    from dataclasses import replace

    from recipe_toolkit.cluster_loader import load_cluster
    from recipe_toolkit.plan.asking import asking
    from recipe_toolkit.plan.expect import expect_from_json, of_profile

    name = cluster or os.environ.get("RECIPE_CLUSTER") or "local"
    if file is None:
        if sets:
            raise click.UsageError("--set changes a recipe, and none is given")
        loaded = load_cluster(name)
        for warning in loaded.warnings:
            click.echo(warning.render(), err=True)
        return loaded.cluster, of_profile(loaded.cluster), None
    from recipe_toolkit.cli.planning import plan_files

    planned = plan_files(file, name, sets)
    site, plan = planned.cluster.cluster, planned.plan
    expect = replace(expect_from_json(plan.check), vllm=asking(planned.recipe.recipe, plan, site))
    return site, expect, len(plan.nodes)


def _by_slurm(
    expect: Expect, site: Cluster, nodes: int | None, checks: list[Check], deep: bool, planning: bool
) -> Report | None:
    if site.scheduler != "slurm":
        raise click.UsageError(f"--slurm: the profile {site.name} is for the scheduler {site.scheduler}")
    if nodes is None:
        raise click.UsageError("--slurm: how many nodes? -N N, or a recipe")
    if planning:
        click.echo(f"a job of {nodes} nodes, one task on each:")
        _reads(expect, checks, deep)
        return None
    from recipe_toolkit.submit.preflight import preflight_slurm

    return preflight_slurm(expect, site, nodes, checks, deep=deep)


def _targets(site: Cluster, hosts: str | None, ssh_config: str | None) -> list[Target]:
    from recipe_toolkit.submit.probing import here, over_ssh

    named = (
        [item.strip() for item in hosts.split(",") if item.strip()]
        if hosts is not None
        else site.check.hosts or site.ssh.hosts
    )
    if not named and (hosts is not None or site.scheduler != "local"):
        raise click.UsageError(f"no nodes are named: --hosts, or check: {{hosts: […]}} in the profile {site.name}")
    for host in named:
        if host.startswith("-"):
            raise click.UsageError(f"--hosts: {host} is no host")
    if not named:
        return [here()]
    config = ssh_config or site.ssh.config
    return [over_ssh(host, site.python or "python3", config) for host in dict.fromkeys(named)]


def _list(checks: list[Check], as_json: bool) -> None:
    from recipe_toolkit.check.text import listed
    from recipe_toolkit.cli.rows import table

    if as_json:
        click.echo(json.dumps([check.to_json() for check in checks], indent=2, ensure_ascii=False))
    else:
        table(list(listed(checks)))


def _plan(expect: Expect, checks: list[Check], targets: list[Target], deep: bool, as_json: bool) -> None:
    from recipe_toolkit.check.build import request
    from recipe_toolkit.run.probe import SECTIONS
    from recipe_toolkit.run.probe_programs import COMMANDS

    asked = request(expect, checks, deep=deep)
    reads = {name: (SECTIONS[name].__doc__ or "").strip() for name in asked["sections"]}
    if as_json:
        nodes: list[dict[str, Any]] = [{"name": target.name, "argv": list(target.argv)} for target in targets]
        document = {"nodes": nodes, "request": asked, "reads": reads, "commands": COMMANDS, "expect": expect.to_json()}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for target in targets:
        click.echo(f"{target.name}: {shlex.join(target.argv)} < probe.py")
    _reads(expect, checks, deep)


def _reads(expect: Expect, checks: list[Check], deep: bool) -> None:
    from recipe_toolkit.check.build import request
    from recipe_toolkit.run.probe import SECTIONS

    click.echo("each node reads, and changes nothing:")
    for name in request(expect, checks, deep=deep)["sections"]:
        click.echo(f"  {name}: {(SECTIONS[name].__doc__ or '').strip()}")


def show(report: Report, as_json: bool) -> None:
    """Print a report."""
    from recipe_toolkit.check.text import paragraphs, rows, summary
    from recipe_toolkit.cli.rows import table
    from recipe_toolkit.errors import printable

    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
        return
    table(list(rows(report)))
    for paragraph in paragraphs(report):
        click.echo()
        for line in paragraph.splitlines():
            click.echo(printable(line))
    click.echo(f"\n{summary(report)}")
