"""Nodes are asked by one step of a Slurm job: a task a node, answers in a folder under the profile's ``runs``."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from recipe_toolkit.check.build import request
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import SubmitError
from recipe_toolkit.plan.expect import Expect
from recipe_toolkit.rundir import write_json
from recipe_toolkit.submit import slurm_commands
from recipe_toolkit.submit.probing import ANSWER_S, DEEP_S, Asked
from recipe_toolkit.submit.slurm_commands import ENDED

QUEUE_S = 3600.0  # for the job to start
_POLL_S, _ASK_S, _LATE_S = 0.5, 5.0, 10.0


def ask(expect: Expect, cluster: Cluster, nodes: int, checks: Any, *, deep: bool, jumbo: bool) -> dict[str, Asked]:
    """Submit the job, wait for it, and read what its nodes have said; the folder is removed.

    Raises SubmitError if the job is refused, does not start in an hour, or ends before any node has answered.
    """
    slurm_commands.require_sbatch()
    try:
        Path(cluster.runs).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".check-", dir=cluster.runs))
    except OSError as error:
        raise SubmitError(f"{cluster.runs}: {error.strerror or error}", hint="`runs` in the profile") from error
    try:
        for name in ("answers", "pings", "job"):
            (folder / name).mkdir()
        order = {
            "request": request(expect, checks, deep=deep),
            "expect": expect.to_json(),
            "nodes": nodes,
            "jumbo": jumbo,
        }
        write_json(folder / "order.json", order)
        return _wait(folder, _submit(folder, expect, cluster, nodes, deep), nodes, DEEP_S if deep else ANSWER_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _submit(folder: Path, expect: Expect, cluster: Cluster, nodes: int, deep: bool) -> tuple[str, str | None]:
    from recipe_toolkit.run.probe_task import look
    from recipe_toolkit.submit.slurm import AgentExecutor, check_path, python_command, srun_args

    check_path(str(folder))
    site = cluster.slurm
    further: dict[str, Any] = {"chdir": str(folder)}
    further |= {key: value for key in ("reservation", "segment") if (value := getattr(site, key))}
    further |= {key: value for key, value in site.directives.items() if value is not False}
    made = AgentExecutor(folder / "job", python=python_command(cluster))
    minutes = math.ceil((DEEP_S if deep else 2 * ANSWER_S) / 60)
    made.update_parameters(
        job_name="recipe-check",
        nodes=nodes,
        ntasks_per_node=1,
        time=minutes,
        partition=site.partition,
        account=site.account,
        qos=site.qos,
        constraint=site.constraint,
        exclusive=True if site.exclusive else None,
        setup=list(site.setup) or None,
        srun_args=[*srun_args(0), *site.srun_args],
        stderr_to_stdout=True,
        wckey=None,
        additional_parameters=further,
        **_gpus(expect, cluster),
    )
    job = made.submit(look, str(folder))
    return str(job.job_id), made.cluster


def _gpus(expect: Expect, cluster: Cluster) -> dict[str, Any]:
    """Those of the recipe: a step sees no others where Slurm holds devices back."""
    site = cluster.slurm
    if not expect.gpus or site.gpus == "none":
        return {}
    if site.gpus == "gpus-per-node":
        kind = site.gres_name.partition(":")[2]
        return {"gpus_per_node": f"{kind}:{expect.gpus}" if kind else expect.gpus}
    return {"gres": f"{site.gres_name}:{expect.gpus}"}


def _wait(folder: Path, job: tuple[str, str | None], nodes: int, answer_s: float) -> dict[str, Asked]:
    from recipe_toolkit.run.probe_task import answers

    job_id, cluster = job
    queued, began, asked_at, ended = time.monotonic(), 0.0, 0.0, None
    try:
        while len(answers(folder / "pings")) < nodes:
            now = time.monotonic()
            if now - asked_at > _ASK_S:
                asked_at = now
                info = slurm_commands.query([job_id], cluster).jobs.get(job_id)
                began = began or (now if info is not None and info.state == "RUNNING" else 0.0)
                ended = ended or (now if info is not None and info.state in ENDED else None)
            if ended is not None and now - ended > _LATE_S:
                break  # the last files may come late over a network file system
            if began and now - began > 2 * answer_s:
                break
            if not began and now - queued > QUEUE_S:
                raise SubmitError(f"job {job_id} did not start in {QUEUE_S:g} s", hint=f"`squeue --jobs={job_id}`")
            time.sleep(_POLL_S)
        first, second = answers(folder / "answers"), answers(folder / "pings")
    finally:
        slurm_commands.scancel(job_id, cluster)
    if not first:
        logs = sorted((folder / "job").glob("*_log.out"))
        said = "\n".join(path.read_text(errors="replace")[-1500:] for path in logs)
        raise SubmitError(f"job {job_id} ended before a node had answered; its log says:\n{said.strip() or 'nothing'}")
    found = {name: Asked([answer, *([second[name]] if name in second else [])]) for name, answer in first.items()}
    for number in range(nodes - len(found)):
        lost = f"it did not answer in job {job_id}"
        found[f"node {len(first) + number} of {nodes}"] = Asked(lost=lost)
    return found
