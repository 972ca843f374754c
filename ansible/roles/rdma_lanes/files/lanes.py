"""How the lanes of a node are now, whatever its files say, and what goes over them. Reads; changes nothing.

``main`` is called with a JSON document, by the role, after this text; it prints one.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import subprocess
import time
from pathlib import Path


def drift(lanes: list, mtu: int, links: dict) -> list:
    """What differs from what is wanted. ``links``: interface -> what ``ip -j addr`` says of it."""
    found = []
    for lane in lanes:
        name, link = lane["interface"], links.get(lane["interface"])
        if link is None:
            found.append(f"{name} is not there")
            continue
        if link["mtu"] != mtu:
            found.append(f"{name} has MTU {link['mtu']}, not {mtu}")
        addresses = [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["family"] == "inet"]
        if addresses != [lane["address"]]:
            found.append(f"{name} has {', '.join(addresses) or 'no address'}, not {lane['address']}")
        if "UP" not in link["flags"]:
            found.append(f"{name} is down")
        elif "LOWER_UP" not in link["flags"]:
            found.append(f"{name} has no carrier: is the cable in?")
    return found


def look(ask: dict) -> list:
    """The drift, looked at until there is none or the time is over."""
    ended = time.monotonic() + ask["patience"]
    while True:
        text = subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True, check=True).stdout
        found = drift(ask["lanes"], ask["mtu"], {link["ifname"]: link for link in json.loads(text)})
        if not found or time.monotonic() > ended:
            return found
        time.sleep(0.2)


def rivals(folder: Path, own: str, lanes: list) -> list:
    """Other files of netplan that name a lane's interface; netplan would merge both."""
    found, names = [], [lane["interface"] for lane in lanes]
    for file in sorted(folder.glob("*.yaml")):
        if str(file) != own:
            text = file.read_text(encoding="utf-8", errors="replace")
            named = [name for name in names if re.search(rf"^\s*([\"']?){re.escape(name)}\1\s*:", text, re.M)]
            found += [f"{file} names {name}" for name in named]
    return found


def prove(ask: dict) -> list:
    """The peers that no packet of the lanes' size reaches. ``others``: name -> the address of each lane."""
    peers = [
        (link, name, ip) for name, ips in ask["others"].items() for link, ip in zip(ask["interfaces"], ips, strict=True)
    ]

    def ping(peer: tuple) -> str | None:
        interface, name, address = peer
        size = str(ask["mtu"] - 28)  # the headers of IPv4 and ICMP
        argv = ["ping", "-c", "1", "-W", "2", "-M", "do", "-s", size, "-I", interface, address]
        for _ in range(3):  # the first may be lost while the peer's address is looked for
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return None
        told = "too long for the lane here" if "too long" in done.stdout + done.stderr else "no answer"
        return f"{interface}: no packet of {ask['mtu']} bytes to {name} ({address}): {told}"

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        return [told for told in pool.map(ping, peers) if told]


def main(text: str) -> None:
    """Print ``{"drift": [...], "rivals": [...]}``, or ``{"lost": [...]}`` where there are peers to reach."""
    ask = json.loads(text)
    if "others" in ask:
        print(json.dumps({"lost": prove(ask)}))
    else:
        print(json.dumps({"drift": look(ask), "rivals": rivals(Path("/etc/netplan"), ask["file"], ask["lanes"])}))
