"""A run's endpoints of /metrics, for a Prometheus that watches a folder.

The file is what ``file_sd_configs`` reads: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from recipe_toolkit.run.context import Context
from recipe_toolkit.rundir import write_json

log = logging.getLogger("recipe_toolkit.run")


def publish(context: Context) -> None:
    """Write ``RUN.json`` into the plan's folder of targets, if it names one. A run does not fail for it."""
    file = _file(context)
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, groups(context))
    except OSError as error:
        log.warning("Prometheus is not told of this run: %s: %s", file, error.strerror)
        context.journal.event("targets_failed", file=str(file), error=str(error.strerror))
        return
    context.journal.event("targets_written", file=str(file))


def withdraw(context: Context) -> None:
    """Remove the file."""
    file = _file(context)
    try:
        if file is not None:
            file.unlink(missing_ok=True)
    except OSError as error:
        log.warning("Prometheus goes on asking this run's engines: remove %s: %s", file, error.strerror)


def _file(context: Context) -> Path | None:
    folder = context.plan.metrics_targets
    return Path(folder, f"{context.run.id}.json") if folder else None


def groups(context: Context) -> list[dict[str, Any]]:
    """One group a process: its address, and the labels ``run``, ``recipe``, ``role``, ``process`` and ``rank``.

    ``rank`` counts the processes of an instance. The ranks of data parallelism inside a process are vLLM's own label
    ``engine``.
    """
    found = []
    for process in context.plan.processes:
        port = "metrics" if "metrics" in process.ports else "http" if process.api else None
        if port is None:
            continue
        labels = {"run": context.run.id, "recipe": context.plan.label, "role": process.role}
        labels |= {"process": process.name, "rank": str(process.rank)}
        found.append({"targets": [context.base_url(process.name, port).removeprefix("http://")], "labels": labels})
    return found
