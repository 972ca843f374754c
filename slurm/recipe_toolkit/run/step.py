"""A program that is a step of Slurm on its agent's node (container runtime pyxis), under the agent's control.

The only caller of squeue and scancel outside of submission: a step is no descendant of its srun, and
nobody but Slurm can end it. Run as a file, with Python's ``-I -S``::

    step.py run RECORD SRUN...                     start the step; TERM is handed on to its program
    step.py pids RECORD                            print the pid of the program, once it runs
    step.py end RECORD JOB NAME SQUEUE SCANCEL     end the step, whatever has become of its srun

RECORD is a file: empty from the start of the srun, with ``JOB.STEP PID START`` from that of the program
(``step.sh`` writes it), and gone when the srun has ended by itself, which it does after its step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_END_S = 15.0  # the keeper gives a clean-up 20
_CALL_S = 10.0
_PAUSE_S = 0.3


def program(record: Path) -> tuple[str, int | None]:
    """(``JOB.STEP``, the program's pid; None where it does not run), as far as the record says."""
    step, pid, start = [*_read(record).split(), "", "", ""][:3]
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() if pid else []
    runs = bool(fields) and fields[19] == start and fields[0] not in "ZX"
    return step, int(pid) if runs else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def run(record: Path, srun: list[str]) -> int:
    """The exit code of the srun. TERM goes to the program, or to an srun whose step has not begun."""
    record.write_text("", encoding="ascii")
    process = subprocess.Popen(srun)

    def stop(*_: object) -> None:
        pid = program(record)[1]
        if pid is None:
            process.terminate()
        else:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    code = process.wait()
    if code < 0:  # killed: its step goes on
        return 128 - code
    record.unlink(missing_ok=True)
    return code


def end(record: Path, job: str, name: str, squeue: str, scancel: str) -> int:
    """0 when nothing of the step is left; 1, and which, when it will not go."""
    limit = time.monotonic() + _END_S
    while record.exists():
        known, pid = program(record)
        steps = _steps(squeue, job, name)
        if pid is None and not steps and (steps is not None or known):
            record.unlink(missing_ok=True)
            break
        if time.monotonic() > limit:
            left = " ".join(steps or [known]).strip() or "unknown: squeue does not answer"
            print(f"the step of {name} is still there ({left}; pid {pid})", file=sys.stderr)
            return 1
        for step in {*(steps or ()), *([known] if known else ())}:
            _call(scancel, "--signal=KILL", step)
        time.sleep(_PAUSE_S)
    return 0


def _steps(squeue: str, job: str, name: str) -> list[str] | None:
    """The steps of this name that Slurm still has; None where it does not say."""
    text = _call(squeue, "--steps", "--noheader", f"--jobs={job}", "--format=%i %j")
    if text is None:
        return None
    rows = (line.split(maxsplit=1) for line in text.splitlines())
    return [row[0] for row in rows if len(row) == 2 and row[1].strip() == name]


def _call(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def main(verb: str, record: str, *rest: str) -> int:
    """Exit code of a verb."""
    if verb == "run":
        return run(Path(record), list(rest))
    if verb == "end":
        return end(Path(record), *rest)
    pid = program(Path(record))[1]
    if pid is not None:
        print(pid)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
