"""The job of a recipe of srt-slurm: its bounds in time, its set-up, and what is of the site."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from recipe_toolkit.durations import format_time_limit, parse_duration, parse_time_limit
from recipe_toolkit.importers.draft import Draft, slug
from recipe_toolkit.importers.env import read_env
from recipe_toolkit.importers.notes import ASSUMED, LOST, UNNEEDED
from recipe_toolkit.importers.profile import ProfileDraft, read_directives, read_mounts, read_srun_options
from recipe_toolkit.importers.reader import Cursor, Source
from recipe_toolkit.setup_steps import MAX_BYTES

# What srt-slurm's set-up offers as the site's default.
_DEFAULT_LIMIT_S = 4 * 3600
_LEVELS = 12
_LONGEST_READY_S = 30 * 24 * 3600


def read_job(root: Cursor, draft: Draft, profile: ProfileDraft) -> str | int:
    """Deadlines and the time limit, which is returned as a duration. Partition and account are the site's."""
    check = root.at("health_check")
    attempts, interval = check.at("max_attempts").integer(least=1), check.at("interval_seconds").number()
    budget = (attempts or 0) * (10 if interval is None else interval)
    if attempts and not 1 <= budget <= _LONGEST_READY_S:
        check.at("interval_seconds").problem(f"{attempts} times {interval} s is no time to start in")
    elif attempts:
        draft.set(("deadlines", "ready"), duration(budget), check.at("max_attempts"))
    for key, item in check.items():
        if key not in ("max_attempts", "interval_seconds"):
            item.note(LOST if item.value not in (True, []) else UNNEEDED, "a start fails when a process ends or stalls")
    limit = root.at("slurm", "time_limit")
    text = limit.text()
    try:
        text = format_time_limit(parse_time_limit(text)) if text else None
    except ValueError as error:
        limit.problem(str(error))
        text = None
    if text is None:
        ready = parse_duration(draft.data.get("deadlines", {}).get("ready", 1))
        text = format_time_limit(max(_DEFAULT_LIMIT_S, -(-int(ready) // 3600) * 3600 + 3600))
        root.source.note(ASSUMED, limit.path, None, f"the site's default there; {text} here")
        draft.comments["time_limit"] = "Not said there: the site's default held."
    draft.set(("time_limit",), text, limit)
    for key in ("account", "partition"):
        item = root.at("slurm", key)
        if item.given:
            profile.set(("slurm", key), item.text() or "", item)
    return duration(parse_time_limit(text))


def duration(seconds: float) -> str | int:
    """Seconds as a recipe says them: ``2h``, ``90m``."""
    whole = int(seconds)
    for size, unit in ((3600, "h"), (60, "m")):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return whole


def read_setup(script: Cursor, draft: Draft, profile: ProfileDraft) -> None:
    """The script that srt-slurm runs in each container from its folder ``configs``, if that folder is near."""
    name = script.value
    if not isinstance(name, str) or not name:
        script.use()
        return
    path = _near(Path(script.source.file), name)
    text = _script(path) if path else None
    if path is None or text is None:
        script.note(LOST, f"no configs/{name} in a folder above: what it installs or patches is missing")
        return
    draft.set(("setup",), [{"name": slug(PurePath(name).stem), "run": text}], script)
    if "/configs/" in text:
        # It calls for others of its folder, which srt-slurm mounts there.
        profile.add(("container", "mounts"), f"{path.parent.absolute()}:/configs:ro", script)
    else:
        script.use()


def _near(file: Path, name: str) -> Path | None:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts or "\0" in name:
        return None
    folders = [folder / "configs" / name for folder in list(file.absolute().parents)[:_LEVELS]]
    return next((path for path in folders if path.is_file()), None)


def _script(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return text if len(text) <= MAX_BYTES else None


def read_site(root: Cursor, draft: Draft, profile: ProfileDraft) -> None:
    """Environment of all processes, options of sbatch and srun, mounts."""
    read_env(root.at("environment"), ("engine", "env"), draft, profile)
    read_directives(root.at("sbatch_directives"), profile)
    read_srun_options(root.at("srun_options"), profile)
    extra = root.at("extra_mount")
    read_mounts([(item.text() or "", item) for item in extra.entries()], profile)
    mounts = root.at("container_mounts")
    read_mounts([(f"{host}:{item.text()}", item) for host, item in mounts.items()], profile)


_CONSEQUENCES = {
    "host_setup": "nodes are taken as they are",
    "profiling": "nothing is profiled",
    "observability": "no traces or component metrics are collected; vLLM's own metrics are",
    "telemetry": "no power is measured",
    "reporting": "no results are sent anywhere",
    "output": "results lie in the run folder",
    "post_eval": "no accuracy is evaluated after the benchmark",
}
_OFF: tuple[Any, ...] = (False, None, "none", {}, [])


def lose_the_rest(source: Source) -> None:
    """Note every key that nothing has used as lost, with what that means for the run where it is known."""
    for cursor in list(source.leftovers()):
        keys = [str(part) for part in cursor.path]
        message = _CONSEQUENCES.get(".".join(keys[:2])) or _CONSEQUENCES.get(keys[0])
        value = cursor.value
        off = value in _OFF or (isinstance(value, dict) and value.get("enabled", value.get("type", True)) in _OFF)
        if off and (message or keys[0] in _CONSEQUENCES):
            cursor.note(UNNEEDED, "it is switched off")
        else:
            cursor.note(LOST, message or "a recipe has no place for it")
