"""What a cluster profile asks for that the toolkit sets itself or that does not fit together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.faults import Fault, FieldPath, shown
from recipe_toolkit.feasibility import containers, lint
from recipe_toolkit.feasibility.serving import path_fault, word_fault
from recipe_toolkit.feasibility.variables import check_env

_SAID_IN_SLURM = {
    name: f"slurm.{name}"
    for name in ("partition", "account", "qos", "reservation", "constraint", "exclusive", "segment")
}
DIRECTIVES = {
    **_SAID_IN_SLURM,
    "gres": "slurm.gpus and slurm.gres_name",
    "gpus": "slurm.gpus and slurm.gres_name",
    "gpus-per-node": "slurm.gpus and slurm.gres_name",
    "gpus-per-task": "slurm.gpus and slurm.gres_name",
    "signal": "slurm.signal_lead",
    "time": "time_limit of the recipe",
    "job-name": "name of the recipe",
    "nodes": "the plan",
    "ntasks": "the plan",
    "ntasks-per-node": "the plan",
    "chdir": "the run folder",
    "input": "the run folder",
    "output": "the run folder",
    "error": "the run folder",
    "open-mode": "the run folder",
    "wait": "recipe submit --wait",
    "test-only": "recipe submit --dry-run",
    "parsable": "recipe submit --json",
    "dependency": "recipe submit --dependency",
    "hold": "recipe submit --hold",
    "array": "one run is one job",
    "wrap": "one run is one job",
}


def check_profile(cluster: Cluster) -> Iterator[Fault]:
    """Every fault of a profile that has passed its schema."""
    yield from check_env(cluster.env, ("env",), site=True)
    for name in cluster.secrets:
        if name in cluster.env:
            yield Fault(("env", name), "stands in env and in secrets", "keep it in secrets alone", key=True)
    yield from _check_paths(cluster)
    yield from _check_models(cluster)
    for name in cluster.slurm.directives:
        # Other things than GPUs are asked for by gres too.
        if name in DIRECTIVES and not (name == "gres" and cluster.slurm.gpus != "gres"):
            yield Fault(("slurm", "directives", name), f"is set by {DIRECTIVES[name]}", "leave it out here", key=True)
    yield from _check_export(cluster)
    for name, network in cluster.check.lanes.items():
        try:
            ipaddress.IPv4Network(network)
        except ValueError as error:
            yield Fault(("check", "lanes", name), f"is no network: {error}", "as in 10.0.1.0/24")
    yield from containers.check_profile(cluster)
    yield from lint.check_answers(cluster.lint, lint.SITE_RULES)


def _check_export(cluster: Cluster) -> Iterator[Fault]:
    """Secrets come in the environment of who submits, which sbatch and srun hand on unless they are told not to."""
    said: list[tuple[FieldPath, str]] = []
    if isinstance(cluster.slurm.directives.get("export"), str):
        said.append((("slurm", "directives", "export"), str(cluster.slurm.directives["export"])))
    words = cluster.slurm.srun_args
    for index, word in enumerate(words):
        name, joined, value = word.partition("=")
        if name == "--export":
            said.append((("slurm", "srun_args", index), value if joined else "".join(words[index + 1 : index + 2])))
    for at, value in said:
        names = [item.strip() for item in value.split(",")]
        lost = [name for name in cluster.secrets if name not in names]
        if lost and "ALL" not in (name.upper() for name in names):
            message = f"{value or 'nothing'} hands no {', '.join(lost)} on, and programs would not find the secrets"
            yield Fault(at, message, "leave it out: Slurm's default is ALL")


def _check_models(cluster: Cluster) -> Iterator[Fault]:
    for alias, path in cluster.models.items():
        message = word_fault(alias)
        if message:
            yield Fault(("models", alias), message, "a name such as llama-3.1-8b", key=True)
        message = path_fault(path)
        if message:
            yield Fault(("models", alias), message, "an absolute path, or hf:ORG/REPO[@REVISION]")


def _check_paths(cluster: Cluster) -> Iterator[Fault]:
    """Whether each path is one that a line of a log or of a batch script can hold."""
    places: list[tuple[FieldPath, str | None]] = [(("runs",), cluster.runs), (("python",), cluster.python)]
    places += [(("pythonpath", index), path) for index, path in enumerate(cluster.pythonpath)]
    places += [
        (("tools", name, kind), path) for name, tool in cluster.tools.items() for kind, path in vars(tool).items()
    ]
    places += [(("container", "mounts", index), mount) for index, mount in enumerate(cluster.container.mounts)]
    for at, path in places:
        bad = next((sign for sign in path or "" if not sign.isprintable()), None)
        if bad is not None:
            yield Fault(at, f"{shown(path)} holds {bad!a}", "choose another path")
