"""Stands for sbatch, squeue, scontrol, sacct, scancel and sinfo: logs how it was called, replays what was recorded.

Called as ``slurm.py FOLDER PROGRAM ARGS…``. FOLDER holds PROGRAM.N.json ({"out", "err", "code", "sleep"}) for
the Nth call, else PROGRAM.json for every call; each call adds a line to calls.jsonl.
"""

import json
import os
import sys
import time
from pathlib import Path

folder, program, *arguments = sys.argv[1:]
call = {"program": program, "argv": arguments, "env": dict(os.environ), "cwd": str(Path.cwd())}
if program == "sbatch":
    call["script"] = Path(arguments[-1]).read_text(encoding="utf-8")
log = Path(folder, "calls.jsonl")
with log.open("a", encoding="utf-8") as file:
    file.write(json.dumps(call) + "\n")
number = sum(json.loads(line)["program"] == program for line in log.read_text(encoding="utf-8").splitlines())
answer = {"err": f"fake {program}: nothing recorded for call {number}\n", "code": 97}
for name in (f"{program}.json", f"{program}.{number}.json"):
    if Path(folder, name).exists():
        answer = json.loads(Path(folder, name).read_text(encoding="utf-8"))
time.sleep(answer.get("sleep", 0))
sys.stdout.write(answer.get("out", ""))
sys.stderr.write(answer.get("err", ""))
sys.exit(answer.get("code", 0))
