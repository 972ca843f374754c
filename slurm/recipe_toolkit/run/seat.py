"""What a host without a scheduler runs for one node of a run: it starts the agent, and hands on what it is told by ssh.

``python -m recipe_toolkit.run.seat`` reads a line of JSON (``Order``) from stdin, then a line for each signal
(``TERM``, ``USR2``, ``KILL``), and an empty one every few seconds. The end of stdin, or a minute without a line, means
that whoever started the run is gone, or the connection is: the agent gets TERM, and KILL when Slurm too would kill it.
Nothing is told by argv, where every user could read it: the first line brings the profile's secrets.

A host holds one run at a time. Who has it binds a socket in the abstract namespace, which dies with its process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from recipe_toolkit import __version__
from recipe_toolkit.run.environment import kill_wait_s
from recipe_toolkit.run.keeper import PR_SET_PDEATHSIG, prctl
from recipe_toolkit.rundir import RunDir

MARK = "RECIPE-SEAT "  # what a login prints before it is no answer
_HOLDER = "\0recipe-toolkit-host"
_AGENT = "import sys; from recipe_toolkit.run.agent import run_agent; run_agent(sys.argv[1])"
_POLL_S = 0.2
BEAT_S, SILENCE_S = 5.0, 60.0
_SPARE_S = 10.0  # from the agent's own limit after TERM to KILL
_SIGNALS = {"TERM": signal.SIGTERM, "USR2": signal.SIGUSR2, "KILL": signal.SIGKILL}

_ENDS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

Order = dict[str, Any]  # run: the folder; digest: of its plan; index, count, job_id; env: variables; look: only look


def look(order: Order) -> dict[str, Any]:
    """Whether this host can take a node of the run: ``busy``, or ``problem``, or neither; and the package's version."""
    run = RunDir(Path(order["run"]))
    problem = None
    try:
        if hashlib.sha256(run.plan.read_bytes()).hexdigest() != order["digest"]:
            problem = f"{run.plan} is another file there"
        elif not os.access(run.job_folder, os.W_OK):
            problem = f"{run.job_folder} may not be written there"
        else:
            run.token.read_bytes()
    except OSError as error:
        problem = f"{error.filename or run.root}: {error.strerror} there"
    return {"version": __version__, "host": socket.gethostname(), "problem": problem, "busy": _hold() is None}


def _hold() -> socket.socket | None:
    """This host for a run, as long as the socket is open; None where another run has it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(_HOLDER)
    except OSError:
        held.close()
        return None
    return held


def sit(order: Order) -> int:
    """Run the agent to its end; its exit code."""
    held = _hold()
    if held is None:
        _say({"problem": f"another run has taken {socket.gethostname()}"})
        return 1
    run = RunDir(Path(order["run"]))
    env = {**os.environ, **order["env"], "RECIPE_SSH_JOB": str(order["job_id"])}
    env |= {"RECIPE_SSH_INDEX": str(order["index"]), "RECIPE_SSH_COUNT": str(order["count"])}
    with (run.job_folder / f"{order['index']}_log.out").open("ab") as log:
        agent = subprocess.Popen(
            [sys.executable, "-u", "-c", _AGENT, str(run.root)],
            env=env,
            cwd=run.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    with held:
        return _serve(agent)


def _die_with_parent() -> None:
    for number in _ENDS:  # the seat ignores them, and a program inherits that: a TERM that comes early would be lost
        signal.signal(number, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _serve(agent: subprocess.Popen[bytes]) -> int:
    """Hand signals on until the agent has ended."""
    heard, kill_at = time.monotonic(), float("inf")
    while agent.poll() is None:
        now, words = time.monotonic(), list[str]()
        if kill_at < float("inf"):
            time.sleep(_POLL_S)  # at its end stdin is always ready
        elif select.select([0], [], [], _POLL_S)[0]:
            data = os.read(0, 4096)
            heard, words = now if data else float("-inf"), data.decode("ascii", "replace").split()
        if kill_at == float("inf") and now - heard > SILENCE_S:
            words, kill_at = ["TERM"], now + kill_wait_s(os.environ) + _SPARE_S
        words += ["KILL"] if now > kill_at else []
        for word in words:
            with contextlib.suppress(ProcessLookupError, KeyError):
                agent.send_signal(_SIGNALS[word])
    return agent.returncode if agent.returncode >= 0 else 128 - agent.returncode


def _say(what: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"\n{MARK}{json.dumps(what)}", flush=True)


def main() -> int:
    """One order."""
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows is for the loop
        byte = os.read(0, 1)
        if not byte:
            return 2
        line += byte
    order = json.loads(line)
    if order.get("look"):
        _say(look(order))
        return 0
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)  # ends come by stdin
    return sit(order)


if __name__ == "__main__":
    sys.exit(main())
