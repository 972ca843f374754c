"""Pyxis (0.20 and later; options from ``args.c`` of NVIDIA/pyxis and srun(1) of Slurm 22.05).

Pyxis is a plugin of srun, so each program is a step of the job on its agent's node: a child of
slurmstepd, not of the agent. A program of ours (``run/step.py``) starts the srun, hands TERM on to the
program, because srun kills a step at once on TERM, and ends the step whatever has happened to the srun.
In the container a script of ours (``run/step.sh``) says which process the step is, and takes from the
environment what would make the program believe that it is a task of an MPI job.

- ``--overlap`` and ``--mem=0``: the agent's own step holds everything that the job has, and this one may use it.
- ``--export=NAMES``: of the agent's environment those variables, by name; ``--container-env`` puts them
  before what the image says.
- Slurm sets CUDA_VISIBLE_DEVICES in each step, over what it was given: the plan's choice travels under
  another name.
- The container is unpacked for each step, and removed with it: a name (``--container-name``) would share
  it among processes, and two that start together would find it half made.
"""

from __future__ import annotations

from dataclasses import replace

from recipe_toolkit.plan.container import enroot
from recipe_toolkit.plan.container.inside import Inside, Runtime
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.values import Host, JobId, Join, NodeFolder, PackagePath, Program, Python, Value

_HELPER = PackagePath("run/step.py")
_SCRIPT = PackagePath("run/step.sh")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def _housed(inside: Inside) -> Process:
    process = inside.process
    record = Join((NodeFolder(), f"/{process.name}.step"))
    helper: list[Value] = [Python(), "-I", "-S", _HELPER]
    env = {**process.env, **enroot.devices(inside)}
    if _VISIBLE in env:
        env[f"RECIPE_{_VISIBLE}"] = env[_VISIBLE]
    names = sorted({*inside.variables, *env})
    words: list[Value] = [Program("srun"), "--overlap", Join(("--jobid=", JobId()))]
    words += [Join(("--nodelist=", Host(process.node))), "--nodes=1", "--ntasks=1", Join(("--job-name=", inside.name))]
    words += ["--mpi=none", "--cpu-bind=none", "--mem=0", "--input=none", f"--export={','.join(names)}"]
    words += [f"--container-image={inside.place.file}", _mounts(inside), Join(("--container-workdir=", inside.folder))]
    words += ["--no-container-mount-home", "--no-container-entrypoint", "--container-remap-root"]
    words += ["--container-writable", f"--container-env={','.join(names)}", *inside.container.args]
    words += ["/bin/sh", _SCRIPT, record, inside.program, *inside.rest]
    return replace(
        process,
        argv=(*helper, "run", record, *words),
        env=env,
        cleanup=(*helper, "end", record, JobId(), inside.name, Program("squeue"), Program("scancel")),
        inspect=(*helper, "pids", record),
    )


def _mounts(inside: Inside) -> Value:
    parts: list[Value] = ["--container-mounts="]
    for index, mount in enumerate(inside.mounts(PackagePath("run"))):
        parts += ["," if index else "", mount.text()]
    return Join(tuple(parts))


RUNTIME = Runtime(_housed, enroot.image)
