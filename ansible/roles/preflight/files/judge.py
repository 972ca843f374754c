"""What is wrong with a node and with what the inventory says of it. Reads; changes nothing.

``main`` is called with a JSON document, by the role, after this text; it prints one.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import shutil
import subprocess
from pathlib import Path

SHARED = ("lanes", "lane_mtu", "gpus")  # what several roles read of the inventory


def judge_lanes(name: str, fleet: dict, links: dict, management: list, mtu: int) -> list:
    """Problems of the lanes of node ``name``.

    ``fleet``: node -> list of {interface, address, hca}. ``links``: interface -> its IPv4 networks now.
    ``management``: interfaces by which people reach the node.
    """
    problems = [] if 1280 <= mtu <= 9216 else [f"lane_mtu is {mtu}: 1280 to 9216 bytes"]
    networks = {}
    for number, lane in enumerate(fleet[name]):
        interface, where = lane["interface"], f"lanes[{number}] ({lane['interface']})"
        if interface in management:
            problems.append(f"{where}: is the management interface; NCCL over it is slow and says nothing")
        elif interface not in links:
            problems.append(f"{where}: no such interface; there are {', '.join(sorted(links))}")
        try:
            address = ipaddress.IPv4Interface(lane["address"])
        except ValueError as error:
            problems.append(f"{where}: address: {error}; it is to be such as 10.42.0.1/24")
            continue
        if address.network.prefixlen == 32:
            problems.append(f"{where}: address {address} has no length of its network: such as {address.ip}/24")
            continue
        shared = [other for other, network in networks.items() if network.overlaps(address.network)]
        shared += [f"{link} ({other})" for link, other in neighbours(interface, address, links)]
        why = "each lane needs one of its own, or a twin carries nothing"
        problems += [f"{where}: {address} is in the subnet of {other}; {why}" for other in shared]
        networks[where] = address.network
    return problems + judge_fleet(name, fleet)


def neighbours(interface: str, address: ipaddress.IPv4Interface, links: dict) -> list:
    """(interface, address) of what else on the node has a part of that subnet now."""
    others = [(link, other) for link, found in links.items() for other in found if link != interface]
    return [(link, other) for link, other in others if ipaddress.IPv4Interface(other).network.overlaps(address.network)]


def judge_fleet(name: str, fleet: dict) -> list:
    """Problems of its lanes beside the others': lane i is one subnet everywhere, and no address is there twice."""
    problems = []
    for other, lanes in fleet.items():
        if other == name or not lanes:
            continue
        if len(lanes) != len(fleet[name]):
            problems.append(f"has {len(fleet[name])} lanes, {other} has {len(lanes)}")
            continue
        for number, (mine, yours) in enumerate(zip(fleet[name], lanes, strict=True)):
            try:
                one, two = ipaddress.IPv4Interface(mine["address"]), ipaddress.IPv4Interface(yours["address"])
            except ValueError:
                continue  # told where it stands
            if one.ip == two.ip:
                problems.append(f"lanes[{number}]: {one.ip} is the address of {other} too")
            elif one.network != two.network:
                problems.append(f"lanes[{number}]: {one} is not in the subnet of {other}'s ({two}): they cannot meet")
    return problems


def judge_system(facts: dict, distributions: dict, architectures: list) -> list:
    """Problems of the operating system."""
    problems = []
    name, version, machine = facts["distribution"], facts["version"], facts["architecture"]
    known = ", ".join(f"{each} {' or '.join(versions)}" for each, versions in distributions.items())
    if version not in distributions.get(name, []):
        problems.append(f"{name} {version} is not known; known are {known} (preflight_distributions)")
    if machine not in architectures:
        problems.append(f"architecture {machine}; wanted {' or '.join(architectures)} (preflight_architectures)")
    return problems


def judge_variables(given: list, known: dict) -> list:
    """Variables that look like a role's and are none, which Ansible would pass over in silence.

    ``known``: role -> its variables.
    """
    problems = []
    for variable in given:
        roles = [role for role in known if variable.startswith(f"{role}_")]
        if roles and all(variable not in known[role] for role in roles):
            near = difflib.get_close_matches(variable, [name for role in roles for name in known[role]], 1)
            meant = f"did you mean {near[0]}?" if near else f"see roles/{roles[0]}/defaults/main.yml"
            problems.append(f"no role reads the variable {variable}: {meant}")
        near = difflib.get_close_matches(variable, SHARED, 1, 0.8)
        if near and variable not in SHARED:
            problems.append(f"no role reads the variable {variable}: did you mean {near[0]}?")
    return problems


def judge_gpus(gpus: dict) -> list:
    """Problems of what the inventory says of the GPUs: their type decides what the driver needs, by its exact name."""
    name = str(gpus.get("type") or "")
    return [] if name == name.lower() else [f"gpus: type: {name} is to be written small: {name.lower()}"]


def run(*argv: str) -> str:
    """What a command prints; nothing where it is not here or fails."""
    if not shutil.which(argv[0]):
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def serving(host: str) -> list:
    """Why the node must not be disturbed: engines that run, jobs of Slurm."""
    found, steps = [], []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
        except OSError:
            continue
        name = words[0].rsplit(b"/", 1)[-1]
        if words[0].startswith(b"slurmstepd: ["):
            steps.append(words[0].decode(errors="replace")[12:])
        elif (
            name.startswith(b"VLLM::")
            or b"vllm" in (word.rsplit(b"/", 1)[-1] for word in words[:2])
            or b"vllm.entrypoints" in b" ".join(words)
        ):
            found = [f"vLLM runs as process {entry.name}"]
    for line in run("docker", "ps", "--format", "{{.Names}} {{.Image}}").splitlines():
        if "vllm" in line:
            found.append(f"container {line.split()[0]} runs")
    jobs = run(
        "squeue", "--noheader", f"--nodelist={host}", "--states=RUNNING,COMPLETING,SUSPENDED", "--format=%i"
    ).split()
    if jobs:
        found.append(f"Slurm's job {', '.join(jobs)} runs")
    elif steps:  # slurmctld does not answer, or calls the node otherwise
        found.append(f"Slurm's step {', '.join(sorted(steps))} runs, of which squeue says nothing")
    return found


def main(text: str) -> None:
    """Print ``{"problems": [...], "serving": [...]}``."""
    ask = json.loads(text)
    problems = []
    if "fleet" in ask:
        addresses = json.loads(run("ip", "-j", "-4", "addr", "show") or "[]")
        links = {link: [] for link in sorted(p.name for p in Path("/sys/class/net").iterdir())}
        for link in addresses:
            links[link["ifname"]] = [f"{i['local']}/{i['prefixlen']}" for i in link["addr_info"] if "local" in i]
        reached = set(ask["reached"])
        management = [link for link, found in links.items() if reached & {a.split("/")[0] for a in found}]
        routes = json.loads(run("ip", "-j", "route", "show", "default") or "[]")
        management += [route["dev"] for route in routes if "dev" in route]
        problems = judge_system(ask["facts"], ask["distributions"], ask["architectures"])
        problems += judge_variables(ask["variables"], ask["known"]) + judge_gpus(ask["gpus"])
        problems += judge_lanes(ask["name"], ask["fleet"], links, management, ask["mtu"])
    print(json.dumps({"problems": problems, "serving": serving(ask["host"])}))
