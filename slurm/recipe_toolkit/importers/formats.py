"""Which format a document is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RECIPE = "recipe"
SRT1 = "srt-slurm, schema 1"
SRT2 = "srt-slurm, schema 2"
SRT_CLUSTER = "srt-slurm's cluster file"
INFERENCEX = "InferenceX's master file"
SPARKRUN = "sparkrun"

_CLUSTER = frozenset(
    {"default_account", "default_partition", "default_time_limit", "model_paths", "containers", "srtctl_root"}
)
_SPARKRUN = frozenset({"container", "runtime", "command", "defaults", "recipe_version"})


def format_of(data: Any) -> str | None:
    """The format of a document's data, or None where it is none that is known."""
    if not isinstance(data, dict):
        return None
    if _is_ours(data):
        return RECIPE
    body = data["base"] if isinstance(data.get("base"), dict) else data
    if _is_srt(body):
        second = data.get("schema") == 2 or body.get("schema") == 2 or ("engine" in body and "backend" not in body)
        return SRT2 if second else SRT1
    if isinstance(data.get("model"), str) and _SPARKRUN & data.keys():
        return SPARKRUN
    if _CLUSTER & data.keys():
        return SRT_CLUSTER
    if data and any(_is_master(entry) for entry in data.values()):
        return INFERENCEX
    return None


def _is_ours(data: Mapping[str, Any]) -> bool:
    """Also where something is wrong with it: our own loader says what."""
    engine = data.get("engine")
    if "extends" in data or "benchmarks" in data or (isinstance(engine, dict) and "kind" in engine):
        return True
    return data.get("schema") == 1 and "roles" in data and "backend" not in data


def _is_srt(body: Mapping[str, Any]) -> bool:
    return bool({"backend", "resources", "benchmark", "roles"} & body.keys()) and isinstance(body.get("model"), dict)


def _is_master(entry: Any) -> bool:
    return (
        isinstance(entry, dict) and {"image", "framework"} <= entry.keys() and isinstance(entry.get("scenarios"), dict)
    )
