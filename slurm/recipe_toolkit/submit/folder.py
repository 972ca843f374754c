"""The run folder, written whole before anything is submitted."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_toolkit.document import dump_yaml
from recipe_toolkit.errors import SubmitError
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.plan.setup import RUNNER
from recipe_toolkit.rundir import RunDir, write_atomic, write_json
from recipe_toolkit.text_file import user_path

RUN_ID = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-.+-[0-9a-f]{4}")
STATE_SCHEMA = 1
_RUNNER = Path(__file__).with_name("setup.sh")


def new_run(runs: str, name: str) -> RunDir:
    """A run folder's path that is free: ``RUNS/<UTC>-NAME-<4 random hex digits>``; nothing is written."""
    root = user_path(runs).absolute()
    while True:
        path = root / new_id(name)
        if not os.path.lexists(path):
            return RunDir(path)


def new_id(name: str) -> str:
    """``<UTC>-NAME-<4 random hex digits>``: a clock that is set back for the winter would put runs out of order."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    return f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.gmtime())}-{word}-{secrets.token_hex(2)}"


def write_run(
    run: RunDir,
    recipe: Mapping[str, Any],
    cluster: Mapping[str, Any],
    plan: Plan,
    sweep: Mapping[str, Any] | None = None,
) -> RunDir:
    """Write recipe, profile, plan and token, and return the run; its folder is there whole or not at all.

    A folder of this name made by another in the meantime gives the run a new suffix.
    Raises SubmitError if the folder cannot be written.
    """
    draft = RunDir(run.root.parent / f".{run.id}.{secrets.token_hex(4)}")
    try:
        draft.root.mkdir(parents=True)
        try:
            write_atomic(draft.recipe_lock, dump_yaml(recipe))
            write_atomic(draft.cluster_lock, dump_yaml(cluster))
            write_json(draft.plan, plan.to_json())
            if sweep is not None:
                write_json(draft.sweep, sweep)
            _write_setup(draft, recipe, plan)
            write_atomic(draft.token, secrets.token_hex(32) + "\n", mode=0o600)
            draft.job_folder.mkdir()
            return _settle(draft, run)
        except BaseException:
            shutil.rmtree(draft.root, ignore_errors=True)
            raise
    except OSError as error:
        raise SubmitError(
            f"cannot write the run folder {run.root}: {error.strerror or error}",
            hint="the profile's `runs` names the folder; it must be writable here and seen by every node",
        ) from error


def _write_setup(run: RunDir, recipe: Mapping[str, Any], plan: Plan) -> None:
    if not plan.setup:
        return
    run.setup.mkdir()
    for step, said in zip(plan.setup, recipe["setup"], strict=True):
        write_atomic(run.root / step.path, said["run"])
    write_atomic(run.root / RUNNER, _RUNNER.read_text(encoding="utf-8"))


def _settle(draft: RunDir, run: RunDir) -> RunDir:
    stem = run.root.name[:-4]
    while True:
        try:
            run.root.mkdir()  # the name is ours from here on, or somebody else's
        except FileExistsError:
            run = RunDir(run.root.with_name(stem + secrets.token_hex(2)))
            continue
        draft.root.rename(run.root)
        return run


def write_job(run: RunDir, job: Mapping[str, Any]) -> None:
    """Say in ``job.json`` which job runs this. Raises OSError."""
    write_json(run.job, {**job, "submitted": time.time()})


def write_refusal(run: RunDir, message: str) -> None:
    """Say in ``state.json`` that the scheduler took no job, so that the run is listed as failed. Raises OSError."""
    write_end(run, "failed", message)


def write_end(run: RunDir, end: str, message: str) -> None:
    """Write the ``state.json`` of a run that no agent will ever write to. Raises OSError."""
    state = {
        "schema": STATE_SCHEMA,
        "state": end,
        "phase": "submit",
        "attempt": 0,
        "updated": time.time(),
        "message": message,
        "valid": None,
        "nodes": [],
        "processes": {},
        "points": {},
    }
    write_json(run.state, state)
