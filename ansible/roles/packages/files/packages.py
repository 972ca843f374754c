"""What dpkg has, what apt offers, and how much room that takes. Reads; changes nothing.

``main`` is called with a JSON document, by the role, after this text; it prints one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
LEFT = 200e6  # bytes that stay free beside what is installed


def run(*argv: str) -> str:
    """What a command prints, in English, whether it fails or not."""
    env = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout


def lacking(wanted: list) -> dict:
    """The packages that are not installed, or at another version than the one that is pinned.

    ``superseded``: those that are installed and differ from a wanted one by a number in their name alone.
    """
    shown = run("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version}\n")
    words = [line.split() for line in shown.splitlines()]
    have = {fields[1]: fields[2] for fields in words if len(fields) == 3 and fields[0] == "installed"}
    names = {item["name"] for item in wanted}
    kinds = {re.sub(r"\d+", "#", name) for name in names}
    return {
        "lacking": [
            item
            for item in wanted
            if item["name"] not in have or (item.get("version") and item["version"] != have[item["name"]])
        ],
        "superseded": sorted(name for name in set(have) - names if re.sub(r"\d+", "#", name) in kinds),
    }


def offered(wanted: list) -> dict:
    """What is not offered, what apt is to be told, and what there is no room for."""
    absent = []
    for item in wanted:
        rows = [line.split("|") for line in run("apt-cache", "madison", item["name"]).splitlines()]
        versions = list(dict.fromkeys(row[1].strip() for row in rows if len(row) == 3))
        if not versions:
            absent.append(f"no {item['name']}")
        elif item.get("version") and item["version"] not in versions:
            absent.append(f"no {item['name']} {item['version']}, but {', '.join(versions[:5])}")
    names = [f"{item['name']}={item['version']}" if item.get("version") else item["name"] for item in wanted]
    return {"absent": absent, "names": names, "space": [] if absent else space(names)}


def space(names: list) -> list:
    """What there is no room for: the archives that are fetched, and what is in them."""
    told = run("apt-get", "install", "--assume-no", "--no-install-recommends", "--allow-downgrades",
               "--allow-change-held-packages", *names)  # fmt: skip
    needs = {"/var/cache/apt/archives": r"Need to get (?:[\d.,]+ [kMG]?B/)?([\d.,]+) ([kMG]?B)",
             "/usr": r"After this operation, ([\d.,]+) ([kMG]?B) of additional disk space"}  # fmt: skip
    short = []
    for place, pattern in needs.items():
        found = re.search(pattern, told)
        need = float(found[1].replace(",", "")) * UNITS[found[2]] if found else 0
        free = shutil.disk_usage(place).free
        if need + LEFT > free:
            short.append(
                f"{place} has {free / 1e6:.0f} MB free, {need / 1e6:.0f} MB are to come beside {LEFT / 1e6:.0f}"
            )
    return short


def main(text: str) -> None:
    """Print what ``lacking`` or ``offered`` finds."""
    ask = json.loads(text)
    print(json.dumps({"lacking": lacking, "offered": offered}[ask["do"]](ask["wanted"])))
