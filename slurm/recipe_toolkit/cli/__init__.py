"""The command ``recipe``: one module a family of verbs, no logic.

This module imports next to nothing: until :func:`main` runs, Ctrl-C would be a traceback.
"""

from __future__ import annotations

import signal
import sys

# verb -> (module, short help). Modules are imported when their verb is used: `recipe --help` stays fast.
VERBS = {
    "new": ("new", "Write a first recipe, and a profile, from a few answers."),
    "validate": ("validate", "Check recipes; every error of every file at once."),
    "import": ("importing", "Turn recipes of other tools into recipes; says what is lost."),
    "plan": ("plan", "Show what would run where, offline."),
    "capacity": ("capacity", "Show what fits into the GPUs: weights, KV cache, requests."),
    "check": ("check", "Check that nodes are fit to serve, or say which is not and why."),
    "diff": ("diff", "Show what differs between recipes or runs, field by field."),
    "submit": ("submit", "Write the run folder and submit the job."),
    "list": ("list", "List the runs of a profile."),
    "status": ("runs", "Show the state of a run and of each of its processes."),
    "logs": ("logs", "Print the logs of processes of a run."),
    "watch": ("watch", "Show a run live, until it ends."),
    "wait": ("runs", "Wait until a run ends; the exit code says how."),
    "cancel": ("runs", "Cancel a run; safe to repeat."),
    "rerun": ("rerun", "Submit a run once more, from what it kept of its recipe."),
    "collect": ("results", "Gather a run's results and artifacts, with a manifest."),
    "report": ("report", "Print the table of results and write the page; or serve it."),
    "schema": ("schema", "Print a JSON Schema, for editors."),
    "compare": ("compare", "Put the results of runs side by side."),
    "frontier": ("frontier", "Predict prefill/decode points from runs of each alone."),
    "export": ("export", "Write results as InferenceX's rows, and read such rows."),
    "tune": ("tune", "Find the best prefill/decode split, by short runs of each alone."),
    "provision": ("provision", "Make nodes ready, by the Ansible playbooks."),
    "completion": ("completion", "Print the completion script of a shell."),
}
# How `recipe --help` lists them; a verb that stands nowhere here comes last, under "Other".
SECTIONS = {
    "Write and check": ("new", "import", "validate", "plan", "capacity", "check", "diff", "schema", "completion"),
    "Run": ("submit", "list", "status", "logs", "watch", "wait", "cancel", "rerun", "tune"),
    "Results": ("collect", "report", "compare", "export", "frontier"),
    "Nodes": ("provision",),
}


def main() -> None:
    """Entry point: the exit code is the command's, and expected errors are one message."""
    # Modules that are being imported know nothing of Ctrl-C: until they are here it ends the process as it does
    # any other program. Where it is ignored (a shell's background job) it stays so.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from recipe_toolkit.cli.group import run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))
