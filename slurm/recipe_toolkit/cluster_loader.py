"""A cluster profile by name or path, to a checked :class:`Cluster`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.cluster import Check, Cluster, Container, Slurm, Ssh, Tool
from recipe_toolkit.cluster_files import EMBEDDED, cluster_folders, known_clusters
from recipe_toolkit.document import Document, read_document
from recipe_toolkit.durations import format_time_limit, minutes_warning, parse_duration, parse_time_limit
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.faults import Fault, FieldPath, did_you_mean, overlaps, shown
from recipe_toolkit.feasibility.profile import check_profile
from recipe_toolkit.overrides import apply_sets
from recipe_toolkit.schema_check import check_schema, repaired

SCHEMA = 1
_GIB = 1 << 30

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


@dataclass(frozen=True)
class LoadedCluster:
    """A profile, the data that it resolves to (paths expanded, so that it means the same from anywhere), warnings."""

    cluster: Cluster
    data: dict[str, Any]
    warnings: tuple[Problem, ...]
    document: Document


def load_cluster(name_or_path: str | None, sets: Sequence[str] = ()) -> LoadedCluster:
    """Find and read a profile, apply ``--set`` assignments, expand its paths, check everything.

    Something that holds ``/`` or ends in ``.yaml`` is a path. A name is looked for in the folders of
    ``$RECIPE_CLUSTERS``, in ``./recipes/clusters``, in ``~/.config/recipe-toolkit/clusters``, and among
    the profiles in the package (``local``). None means ``$RECIPE_CLUSTER``.

    Raises InputError with every problem.
    """
    return load_profile(find_cluster(name_or_path), sets)


def load_profile(path: Path, sets: Sequence[str] = ()) -> LoadedCluster:
    """The profile in a file. Raises InputError with every problem."""
    document = read_document(path, f"profile {path.stem}" if path.parent == EMBEDDED else None)
    if not isinstance(document.data, dict):
        what = "is empty" if document.data is None else f"holds {shown(document.data)}, not a mapping"
        raise InputError([*document.problems, document.problem(Fault((), what))])
    apply_sets(document, sets, "cluster")
    data = document.data
    # Relative paths begin at the profile, but a profile of the package has no place of its own.
    folder = Path.cwd() if path.parent == EMBEDDED else path.absolute().parent
    faults = check_schema(data, "cluster")
    untrusted = [fault.path for fault in faults]
    sound = repaired(data, faults, "cluster")
    cluster = None
    if sound is not None:
        further = [*_expand(sound, folder), *_warnings(sound)]
        cluster = _build(sound)
        further += check_profile(cluster)
        faults += [item for item in further if not any(overlaps(item.path, path) for path in untrusted)]
    problems = document.problems_with(faults)
    if cluster is None or any(problem.refuses for problem in problems):
        raise InputError(problems)
    return LoadedCluster(cluster, _cluster_data(cluster), tuple(sorted(problems)), document)


def find_cluster(name_or_path: str | None) -> Path:
    """The file of a profile. Raises InputError where there is none."""
    name = name_or_path or os.environ.get("RECIPE_CLUSTER")
    if not name:
        hint = "--cluster NAME, --cluster local for this machine alone, or the variable RECIPE_CLUSTER"
        raise InputError([Problem("--cluster", 0, 0, "", "no cluster profile is named", hint)])
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(_home(name))
    folders = list(cluster_folders())
    for folder in folders:
        candidate = folder / f"{name}.yaml"
        if candidate.is_file():
            return candidate
    known = known_clusters()
    meant = did_you_mean(name, known)
    hint = f"{meant} Or" if meant else f"profiles here: {', '.join(known)}; or"
    hint += f" give its path, as in ./{name}.yaml"
    searched = ", ".join(str(folder) for folder in folders[:-1])
    raise InputError([Problem("--cluster", 0, 0, "", f"no profile {name!r} in {searched}, or in the package", hint)])


def _expand(data: dict[str, Any], folder: Path) -> Iterator[Fault]:
    """Expand every path of the data in place; a variable that is not set is a fault."""
    places: list[tuple[FieldPath, dict[str, Any] | list[str], str | int, bool]] = [(("runs",), data, "runs", True)]
    if "metrics_targets" in data:
        places.append((("metrics_targets",), data, "metrics_targets", True))
    if "python" in data:
        places.append((("python",), data, "python", "/" in data["python"]))
    places += [(("pythonpath", i), data["pythonpath"], i, True) for i in range(len(data.get("pythonpath", ())))]
    if "config" in data.get("ssh", {}):
        places.append((("ssh", "config"), data["ssh"], "config", True))
    container = data.get("container", {})
    if "cache" in container:
        places.append((("container", "cache"), container, "cache", True))
    images = container.get("images", {})
    # What is no path is a reference, in which nothing is expanded.
    places += [(("container", "images", name), images, name, True) for name in images if images[name][0] in "/~$."]
    models = data.get("models", {})
    places += [(("models", alias), models, alias, True) for alias in models if not models[alias].startswith("hf:")]
    folders = data.get("data", {})
    places += [(("data", alias), folders, alias, True) for alias in folders]
    for name, tool in data.get("tools", {}).items():
        places += [(("tools", name, kind), tool, kind, True) for kind in ("venv", "path") if kind in tool]
    for path, holder, key, absolute in places:
        text: str = holder[key]  # type: ignore[index]
        full, message = _expanded(text)
        if message:
            yield Fault(path, message, "write the path out")
            continue
        holder[key] = os.path.normpath(folder / full) if absolute else full  # type: ignore[index]
    yield from _expand_mounts(data)


def _expand_mounts(data: dict[str, Any]) -> Iterator[Fault]:
    mounts = data.get("container", {}).get("mounts", [])
    for index, mount in enumerate(mounts):
        host, _, rest = mount.partition(":")
        full, message = _expanded(host)
        if message or not full.startswith("/"):
            message = message or f"{shown(host)} is not an absolute path"
            yield Fault(("container", "mounts", index), message, "HOST:CONTAINER, both absolute")
        else:
            mounts[index] = f"{full}:{rest}"


def _expanded(text: str) -> tuple[str, str | None]:
    """The text with ``~`` and variables expanded, or why it cannot be."""
    names = (match[1] or match[2] for match in _VARIABLE.finditer(text))
    unset = next((name for name in names if not os.environ.get(name)), None)
    if unset:
        return text, f"${unset} is not set in the environment"
    full = _home(_VARIABLE.sub(lambda match: os.environ[match[1] or match[2]], text))
    return full, f"no such user: {full.split('/')[0]}" if full.startswith("~") else None


def _home(text: str) -> str:
    # Path.expanduser raises where there is no such user; this leaves the ~, for a message that names it.
    return os.path.expanduser(text)  # noqa: PTH111


def _warnings(data: dict[str, Any]) -> Iterator[Fault]:
    for name, others in (("slurm", ("local",)), ("ssh", ("slurm", "local"))):
        if data["scheduler"] in others and name in data:
            said = f"is not used: the scheduler is {data['scheduler']}"
            yield Fault((name,), said, f"scheduler: {name}", key=True, severity="warning")
    if data["scheduler"] == "ssh" and not data.get("ssh", {}).get("hosts"):
        yield Fault(
            ("ssh",), "missing: the scheduler is ssh, and no hosts are named", "ssh: {hosts: [a, b]}", absent=True
        )
    told = minutes_warning(data.get("slurm", {}).get("max_time", ""))
    if told:
        yield Fault(("slurm", "max_time"), *told, severity="warning")


def _build(data: dict[str, Any]) -> Cluster:
    slurm: dict[str, Any] = dict(data.get("slurm", {}))
    max_time, signal_lead = slurm.pop("max_time", None), slurm.pop("signal_lead", Slurm.signal_lead_s)
    container: dict[str, Any] = {
        key: tuple(item) if isinstance(item, list) else item for key, item in data.get("container", {}).items()
    }
    slurm |= {key: tuple(slurm[key]) for key in ("setup", "srun_args") if key in slurm}
    return Cluster(
        name=data["name"],
        scheduler=data["scheduler"],
        runs=data["runs"],
        python=data.get("python"),
        pythonpath=tuple(data.get("pythonpath", ())),
        models=dict(data.get("models", {})),
        data=dict(data.get("data", {})),
        tools={name: Tool(**tool) for name, tool in data.get("tools", {}).items()},
        container=Container(**container),
        env=dict(data.get("env", {})),
        secrets=tuple(data.get("secrets", ())),
        interface=data.get("interface"),
        metrics_targets=data.get("metrics_targets"),
        max_nodes=data.get("max_nodes"),
        lint=dict(data.get("lint", {})),
        slurm=Slurm(
            **slurm,
            max_time_s=parse_time_limit(max_time) if max_time is not None else None,
            signal_lead_s=math.ceil(parse_duration(signal_lead)),
        ),
        ssh=Ssh(tuple(data.get("ssh", {}).get("hosts", ())), data.get("ssh", {}).get("config")),
        check=_check(data.get("check", {})),
    )


def _check(data: dict[str, Any]) -> Check:
    check: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in data.items()}
    return Check(**{**check, "disk": {path: math.ceil(gib * _GIB) for path, gib in data.get("disk", {}).items()}})


def _cluster_data(cluster: Cluster) -> dict[str, Any]:
    slurm = dict(vars(cluster.slurm))
    max_time, signal_lead = slurm.pop("max_time_s"), slurm.pop("signal_lead_s")
    check = {**vars(cluster.check), "disk": {path: size / _GIB for path, size in cluster.check.disk.items()}}
    slurm |= {"max_time": format_time_limit(max_time) if max_time else None, "signal_lead": signal_lead}
    data = {
        "schema": SCHEMA,
        **vars(cluster),
        "tools": {name: _said(vars(tool)) for name, tool in cluster.tools.items()},
        "container": _said(vars(cluster.container)),
        "slurm": _said(slurm) if cluster.scheduler == "slurm" or cluster.slurm != Slurm() else None,
        "ssh": _said(vars(cluster.ssh)) if cluster.ssh != Ssh() else None,
        "check": _said(check) if cluster.check != Check() else None,
    }
    return _said(data)


def _said(data: dict[str, Any]) -> dict[str, Any]:
    """Without what is None or empty; tuples as lists."""
    plain = {key: list(item) if isinstance(item, tuple) else item for key, item in data.items()}
    return {key: item for key, item in plain.items() if item is not None and item not in ({}, [])}
