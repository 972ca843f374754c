"""Writes what nvidia-smi prints every five seconds, for the node exporter, under the names that DCGM's exporter has.

What a GPU does not have (GB10: memory of its own) is left out.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

FILE = Path("/var/lib/prometheus/node-exporter/recipe-gpu.prom")
INTERVAL_S = 5.0
# Field of nvidia-smi -> name of DCGM (https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html).
FIELDS = {
    "utilization.gpu": "DCGM_FI_DEV_GPU_UTIL",
    "temperature.gpu": "DCGM_FI_DEV_GPU_TEMP",
    "power.draw": "DCGM_FI_DEV_POWER_USAGE",
    "clocks.sm": "DCGM_FI_DEV_SM_CLOCK",
    "memory.used": "DCGM_FI_DEV_FB_USED",
    "memory.free": "DCGM_FI_DEV_FB_FREE",
}
QUERY = ["nvidia-smi", f"--query-gpu=index,uuid,name,{','.join(FIELDS)}", "--format=csv,noheader,nounits"]


def exposition(text: str) -> str:
    """Prometheus' text of what nvidia-smi prints: a line a GPU; percent, °C, W, MHz, MiB."""
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines() if line.strip()]
    lines = []
    for place, name in enumerate(FIELDS.values(), 3):
        samples = []
        for row in rows:
            try:
                value = float(row[place])
            except (IndexError, ValueError):
                continue  # [N/A]
            samples.append(f'{name}{{gpu="{row[0]}",UUID="{row[1]}",modelName="{row[2]}"}} {value:g}')
        lines += [f"# TYPE {name} gauge", *samples] if samples else []
    return "\n".join([*lines, f"recipe_gpu_figures_gpus {len(rows)}", ""])


def main() -> None:
    """Go on until ended; a query that fails leaves no figures, rather than old ones."""
    while True:
        try:
            done = subprocess.run(QUERY, capture_output=True, text=True, timeout=30, check=False)
            text = exposition(done.stdout if done.returncode == 0 else "")
        except (OSError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr, flush=True)
            text = exposition("")
        new = FILE.with_suffix(".new")
        new.write_text(text)
        new.chmod(0o644)
        new.rename(FILE)
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main()
