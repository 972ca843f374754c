"""How long `recipe --help`, `recipe plan` and `recipe validate` take, beside what one cannot avoid.

    .venv/bin/python tests/bench/startup.py [RUNS]

Whole processes, in turn (A B C A B C …), so that a drifting machine hits all alike. Prints the median
of each in seconds and its ratio to `python -c "import submitit"` in the same run. Asserts nothing. Bytecode is kept, as
an installed package keeps it, whatever PYTHONDONTWRITEBYTECODE says here: compiling the sources anew takes half as long
again as all the rest.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = str(Path(sys.executable).parent / "recipe")
SITE = "recipes/clusters/example-slurm.yaml"
LARGEST = "recipes/tiny/sim-4p1d-24gpu.yaml"
COMMANDS = {
    'python -c "pass"': [sys.executable, "-c", "pass"],
    'python -c "import submitit"': [sys.executable, "-c", "import submitit"],
    "recipe --help": [RECIPE, "--help"],
    "recipe plan (24 GPUs)": [RECIPE, "plan", LARGEST, "--cluster", "local"],
    "recipe plan (vLLM, flags checked)": [RECIPE, "plan", "recipes/tiny/cpu-1p1d-nixl.yaml", "--cluster", SITE],
    "recipe validate recipes/": [RECIPE, "validate", "recipes"],
}


def once(argv: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for argv in COMMANDS.values():
            once(argv, environment)
        for _ in range(runs):
            for name, argv in COMMANDS.items():
                times[name].append(once(argv, environment))
    base = statistics.median(times['python -c "import submitit"'])
    print(f"{'command':<36}{'median s':>10}{'min s':>8}{'× submitit':>12}")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:<36}{median:>10.3f}{min(values):>8.3f}{median / base:>12.2f}")


if __name__ == "__main__":
    main()
