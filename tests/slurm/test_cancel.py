"""scancel in every phase of a run, on a real Slurm: nothing stays behind, what there is of results stays."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from slurm_site import LONG, QUICK, Run, Site, small_recipe
from submit_support import wait_until

pytestmark = pytest.mark.slurm

BIND_LATE = f"""#!/bin/sh
[ "$SLURM_NODEID" != 1 ] || sleep 100
exec {shlex.quote(sys.executable)} "$@"
"""


@dataclass(frozen=True)
class Moment:
    """How a run is made to stay in a phase. ``there``: whether it is in it. ``phases``: what it may say then."""

    there: Callable[[Run], Any]
    phases: tuple[str, ...]
    sim: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    code: int = 103


def phase(name: str) -> Callable[[Run], Any]:
    return lambda run: run.record.get("phase") == name


MOMENTS = {
    "pending": Moment(lambda run: True, (), words=("--hold",)),
    "bind": Moment(phase("bind"), ("bind",)),
    # Too short to stay in: it may be the next one by then, which is long.
    "launch": Moment(
        lambda run: any(event["phase"] == "launch" for event in run.events("phase")),
        ("launch", "ready"),
        {"startup_s": 100},
    ),
    "ready": Moment(phase("ready"), ("ready",), {"startup_s": 100}),
    # The proof's prompt is longer than a block of KV, the tokens before it are few.
    "prove": Moment(phase("prove"), ("prove",), {"prefill_tokens_per_s": 0.5}),
    "bench": Moment(lambda run: any(e["process"] == "bench-c1" for e in run.events("process_started")), ("bench",)),
    # All was measured by then.
    "drain": Moment(phase("drain"), (), {"fault": {"kind": "ignore_term"}}, code=0),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_scancel_in_every_phase(slurm_rig, tmp_path, name):
    moment = MOMENTS[name]
    site = Site(slurm_rig, tmp_path)
    if name == "bind":
        python = tmp_path / "python"
        python.write_text(BIND_LATE)
        python.chmod(0o755)
        site.profile.write_text(json.dumps({**json.loads(site.profile.read_text()), "python": str(python)}))
    recipe = small_recipe(QUICK, *([] if name == "drain" else [LONG]))
    recipe["engine"]["sim"] |= moment.sim
    recipe["deadlines"] |= {"ready": 200, "prove": 200, "stall": 200, "drain": 60}
    run = site.start(recipe, *moment.words)
    wait_until(lambda: moment.there(run), 90, f"{name}: {run.record}")
    assert slurm_rig.exec("scancel", run.job_id).returncode == 0
    state = run.wait(moment.code)
    assert state["state"] == ("done" if name == "drain" else "cancelled")
    if moment.phases:
        assert any(f"cancelled (SIGTERM), in phase {phase}" in state["message"] for phase in moment.phases), state
    run.leaves_nothing()
    if name == "pending":
        assert run.record == {}
        return
    assert not state["stale"]
    points = [point["id"] for point in json.loads((run.folder / "results.json").read_text())["points"]]
    assert ("c0" in points) == (name in ("bench", "drain")), points
    assert site.recipe("report", run.id).returncode == 0
