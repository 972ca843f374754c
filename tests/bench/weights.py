"""How long a model takes to eight nodes, beside one copy of it and seven copies one after the other.

    .venv/bin/python tests/bench/weights.py [NODES [RATE_MBIT]]

As root, on scripts/mini-nodes with one lane in use, shaped so that the link is what limits. One copy and the copies
one after the other are plain rsync from the first node's daemon; the fan-out is the role. Prints seconds, ratios and
the bytes on the lanes and on management, as the kernel counts them. Asserts nothing.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from ansible_rig import Nodes  # noqa: E402  # beside this file's folder

MODEL, FILES, BYTES = "/models/big", 48, 4_000_000
DAEMON = "use chroot = no\nuid = root\ngid = root\n[model]\npath = /models\n"


def counters(nodes: Nodes, names: list[str]) -> dict[str, int]:
    """Bytes sent by all nodes, on the lanes and on management, and by the first on its lane."""
    script = "cd /sys/class/net; cat enp1s0f1np1/statistics/tx_bytes enP7s7/statistics/tx_bytes"
    found = {name: [int(n) for n in nodes.on(name, script).split()] for name in names}
    return {
        "lanes": sum(lane for lane, _ in found.values()),
        "first node's lane": found[names[0]][0],
        "management": sum(management for _, management in found.values()),
    }


def main() -> None:
    count, rate = (int(word) for word in (*sys.argv[1:], *("8", "60")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(Path(folder) / "rig")
        done = nodes.call("up", str(count), "--rate", f"{rate}mbit", timeout=1200)
        assert done.returncode == 0, done.stderr
        try:
            measure(nodes, count, rate)
        finally:
            nodes.call("down")


def measure(nodes: Nodes, count: int, rate: int) -> None:
    names = (nodes.folder / ".mini-nodes").read_text().split()
    for number, name in enumerate(names, 1):
        nodes.on(name, f"ip addr add 10.42.0.{number}/24 dev enp1s0f1np1; ip link set enp1s0f1np1 mtu 9000")
    nodes.on(
        names[0], f"mkdir -p {MODEL}; cd {MODEL}; for i in $(seq {FILES}); do head -c {BYTES} /dev/urandom > m$i; done"
    )
    size = FILES * BYTES
    print(
        f"{count} nodes, {FILES} files, {size / 1e6:g} MB, "
        f"lanes of {rate} Mbit/s: a copy takes {size * 8 / rate / 1e6:.1f} s"
    )
    nodes.on(
        names[0],
        f"printf '{DAEMON}' > /tmp/d.conf; rsync --daemon --config=/tmp/d.conf --address=10.42.0.1 --port=8731",
    )
    began = time.monotonic()
    for index, name in enumerate(names[1:]):
        nodes.on(name, "mkdir -p /plain; rsync -a rsync://10.42.0.1:8731/model/big/ /plain/")
        if index == 0:
            one = time.monotonic() - began
    rows = {"one copy, rsync": one, f"{count - 1} copies, rsync, one after the other": time.monotonic() - began}

    before = counters(nodes, names)
    lanes = {name: [{"interface": "enp1s0f1np1", "address": f"10.42.0.{n}/24"}] for n, name in enumerate(names, 1)}
    options = {"model_weights_models": [{"path": MODEL}], "model_weights_margin_gb": 0}
    options["model_weights_lanes"] = f"{{{{ {json.dumps(lanes)}[inventory_hostname] }}}}"
    played = nodes.play("playbooks/model_weights.yml", "-e", json.dumps(options), timeout=1800)
    assert played.code == 0, played.text
    spans = re.findall(r"GB in ([0-9.]+) s, from ([0-9.]+) to ([0-9.]+)", played.words)
    rows[f"{count - 1} copies, the role"] = max(float(end) for *_, end in spans) - min(
        float(start) for _, start, _ in spans
    )
    after = counters(nodes, names)
    for name in names[1:]:
        nodes.on(name, f"cd {MODEL}; sha256sum --quiet -c MANIFEST.sha256")
    for what, seconds in rows.items():
        print(f"{seconds:8.1f} s  {seconds / one:5.2f} x  {what}")
    for what in after:
        print(f"{(after[what] - before[what]) / FILES / BYTES:8.2f} models' bytes sent on: {what}")


if __name__ == "__main__":
    main()
