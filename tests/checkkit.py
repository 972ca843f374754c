"""Four DGX Sparks as a probe sees them, all well; tests break one thing."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from recipe_toolkit.check.catalog import CATALOG
from recipe_toolkit.check.evaluate import evaluate
from recipe_toolkit.check.lanes import pings
from recipe_toolkit.check.parse import parse
from recipe_toolkit.plan.expect import Expect

NAMES = ("melchior", "balthasar", "casper", "artaban")
LANES = {"enp1s0f1np1": "10.91.100.0/24", "enP2p1s0f1np1": "10.91.101.0/24"}
HCAS = {"rocep1s0f1": "enp1s0f1np1", "roceP2p1s0f1": "enP2p1s0f1np1"}
MODEL = "/models/glm"
IMAGE = "vllm:1"
MIB = 1 << 20

SPARKS = Expect(
    device="gpu",
    gpu="GB10",
    gpus=1,
    driver="580.95.05",
    env={"NCCL_NET": "IB", "NCCL_IB_HCA": ",".join(HCAS), "NCCL_IB_GID_INDEX": "3"},
    runtime="docker",
    images=({"reference": IMAGE, "engine": ["docker"], "file": None},),
    model=MODEL,
    memory=0.8,
    ports=(8000,),
    port_count=4,
    disk={"/runs": 1 << 30},
    lanes=LANES,
)


# As `nvidia-imex-ctl -N` of driver 580 prints it; the local node is marked.
IMEX = """\
Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
C - Connected - Ready for operation

5/4/2026 06:08:10.580
Nodes:
Node #0   * 172.31.48.81 *  - READY                - Version: 580.95.05
Node #1   - 172.31.48.98    - READY                - Version: 580.95.05

 Nodes From\\To  0   1
       0        C   C
       1        C   C
Domain State: UP
"""


def done(out="", rc=0, err=""):
    return {"rc": rc, "out": out, "err": err}


ABSENT = done(rc=None, err="not on PATH")


def spark(index):
    """The answer of one node: every section."""
    last = index + 1
    addresses = [
        {"ifname": name, "addr_info": [{"family": "inet", "local": local, "prefixlen": 24}]}
        for name, local in [
            ("enP7s7", f"10.91.0.{last}"),
            *((lane, f"10.91.{100 + at}.{last}") for at, lane in enumerate(LANES)),
            ("docker0", "172.17.0.1"),
        ]
    ]
    link = {"operstate": "up", "carrier": "1", "speed": "200000", "mtu": "9000", "wireless": False}
    sections = {
        "system": {
            "host": NAMES[index],
            "kernel": "6.17.0-1032-nvidia",
            "machine": "aarch64",
            "os_release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"',
            "dgx_release": 'DGX_SWBUILD_VERSION="7.3.1"',
            "cmdline": "quiet",
            "meminfo": "MemTotal: 125000000 kB\nMemFree: 120000000 kB\nMemAvailable: 121000000 kB\n"
            "CmaTotal: 65536 kB\nCmaFree: 60000 kB",
            "swaps": "Filename Type Size Used Priority",
            "target": "multi-user.target",
            "sysctl": {
                "kernel.apparmor_restrict_unprivileged_userns": "0",
                "user.max_user_namespaces": "96365",
                "net.ipv4.ip_forward": "1",
            },
            "limits": {"nofile": [1048576, 1048576], "memlock": [None, None]},
        },
        "units": done(
            "\n\n".join(
                f"Id={name}.service\nLoadState=loaded\nActiveState=active\nLimitMEMLOCK=infinity\nLimitNOFILE=1048576"
                for name in ("docker", "containerd", "slurmd", "earlyoom")
            )
        ),
        "driver": {
            "loaded": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build",
            "modinfo": done("580.95.05\n"),
            "gpus": done("0, NVIDIA GB10, 580.95.05, [N/A], [N/A]\n"),
            "peermem": False,
            "holds": done("nvidia-driver-580-open\n"),
            "apt": done(""),
            "dpkg": done("nvidia-driver-580-open installed\n"),
        },
        "fabric": done("Fabric\n State : N/A\n Status : N/A"),
        "imex": {"ctl": done(IMEX), "config": "aa" * 32, "channel": True},
        "klog": {"rc": 0, "err": "", "lines": 900, "bad": []},
        "power": done("0, 60.00, 2400, 95\n"),
        "net": {
            "interfaces": {item["ifname"]: dict(link) for item in addresses},
            "addresses": done(json.dumps(addresses)),
            "routes": done(json.dumps([{"dev": "enP7s7"}])),
        },
        "rdma": {
            "devices": {hca: device(lane, f"10.91.{100 + at}.{last}") for at, (hca, lane) in enumerate(HCAS.items())},
            "dev": {"/dev/infiniband/rdma_cm": True, "/dev/infiniband/uverbs0": True, "/dev/infiniband/uverbs1": True},
        },
        "docker": {
            "info": done(
                json.dumps({"Driver": "overlay2", "DriverStatus": [], "Runtimes": {"nvidia": {}, "runc": {}}})
            ),
            "daemon": json.dumps({"runtimes": {"nvidia": {}}}),
            "cdi": ABSENT,
        },
        "images": {IMAGE: done(json.dumps({"id": "sha256:1", "digests": ["vllm@sha256:11"], "layers": ["sha256:a"]}))},
        "inside": {IMAGE: done("1048576\nunlimited\n2\n")},
        "model": {
            "path": MODEL,
            "there": True,
            "files": 12,
            "dangling": [],
            "missing": [],
            "cut": [],
            "config": "c0" * 32,
            "manifest": "d0" * 32,
            "deep": {"against": "manifest", "bad": [], "hashed": 12, "sha256": "e0" * 32},
        },
        "disk": {"/runs": {"bytes": 500 << 30, "inodes": 1000000}},
        "ports": [22],
        "slurm": {"srun": done("--container-image"), "enroot": done("3.5.0"), "conf": ""},
        "forward": done("-A DOCKER-USER -i a -o b -j ACCEPT"),
    }
    return {"host": NAMES[index], "began": 1000.0, "ended": 1001.0, "sections": sections}


def device(lane, address):
    """An RDMA device with its GIDs as the kernel lays them out: v1 and v2 of the link's, then of the IPv4 address."""
    mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*map(int, address.split(".")))
    gids = [
        {"index": index, "gid": gid, "type": kind, "ndev": lane}
        for index, (gid, kind) in enumerate(
            [
                ("fe80:0000:0000:0000:3e6d:66ff:fecc:b3b7", "IB/RoCE v1"),
                ("fe80:0000:0000:0000:3e6d:66ff:fecc:b3b7", "RoCE v2"),
                (mapped, "IB/RoCE v1"),
                (mapped, "RoCE v2"),
            ]
        )
    ]
    port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "Ethernet", "rate": "200 Gb/sec"}
    return {"ports": {"1": {**port, "gids": gids}}, "netdevs": [lane], "ibv": done("active_mtu: 4096 (5)")}


def sparks():
    """Answers of all four, by name."""
    return {name: copy.deepcopy(spark(index)) for index, name in enumerate(NAMES)}


def judge(answers, expect=SPARKS, checks=CATALOG, lost=None, unreached=()):
    """The report on these answers. ``unreached``: (from, to, lane) of the pings that do not come back."""
    nodes = [parse(name, [answer], (1000.0, 1001.1)) for name, answer in answers.items()]
    for node in nodes:
        asked = pings(expect, nodes).get(node.name, [])
        node.pings = tuple(
            {**ping, "rc": int((node.name, ping["to"], ping["interface"]) in unreached), "err": ""} for ping in asked
        )
    return evaluate(expect, nodes, checks, lost)


# What a recipe for vLLM asks of the vLLM that it runs on.
HELP = (Path(__file__).parent / "data" / "vllm-help" / "serve-0.32.0.txt").read_text(encoding="utf-8")
VLLM = {
    "head": ["vllm"],
    "remove": [],
    "env": {},
    "where": IMAGE,
    "commands": {"prefill": [["serve", "/m", "--max-num-seqs", "4"]], "decode": [["serve", "/m", "--headless"]]},
    "version": "0.32.0",
    "setup": False,
}


def cpu_recipe(image: str | None = None, **args: object) -> dict[str, object]:
    """A recipe for vLLM 0.32.0 on CPU; ``args``: of its only role, ``_`` for ``-``."""
    return {
        "schema": 1,
        "name": "flags",
        "model": {"path": "/models/tiny", "served_name": "tiny"},
        "engine": {"kind": "vllm", "version": "0.32.0", **({"image": image} if image else {})},
        "resources": {"gpu": "cpu", "device": "cpu", "gpus_per_node": 1},
        "roles": {"serve": {"instances": 1, "args": {key.replace("_", "-"): value for key, value in args.items()}}},
        "benchmarks": [{"client": "command", "name": "c", "command": ["true"]}],
    }


def asks_the_image(
    recipe: Callable[..., subprocess.CompletedProcess[str]],
    folder: Path,
    runtime: str,
    image: str,
    env: Mapping[str, str],
    args: list[str],
) -> None:
    """`recipe check` with an image that runs under a real container runtime, and that has another flag than it should.

    The image's vllm renames a flag as a variable says, which it must have from the profile.
    """
    words = ("check", folder / "flags.yaml", "-c", folder / "site.yaml")
    words += ("--only", "VLLM.FLAGS,VLLM.VERSION,IMAGE.DIGEST")

    def told(reference: str, version: str = "0.32.0", **variables: str) -> dict[str, tuple[str, list[dict[str, str]]]]:
        profile = {"schema": 1, "name": "site", "scheduler": "local", "runs": str(folder / "runs"), "env": variables}
        profile["container"] = {"runtime": runtime, "args": args, "mounts": [f"{folder}:/mounted"]}
        (folder / "site.yaml").write_text(json.dumps(profile))
        (folder / "flags.yaml").write_text(json.dumps(cpu_recipe(reference, max_num_seqs=4)))
        done = recipe(*words, "--set", f"engine.version={version}", "--json", **env)
        report = json.loads(done.stdout)
        assert done.returncode == (0 if report["ok"] else 1)
        return {item["id"]: (item["status"], item["findings"]) for item in report["checks"]}

    first = told(image)
    assert {status for status, _ in first.values()} == {"passed"}, first
    found = told(image, "0.31.0", RENAMED="max-num-sequences")
    status, (lacking,) = found["VLLM.FLAGS"]
    assert status == "failed"
    assert lacking["found"] == f"serve: {image} (0.32.0+cu130): this vLLM has no flag --max-num-seqs"
    assert lacking["wanted"] == "did you mean `max-num-sequences`?"
    status, (other,) = found["VLLM.VERSION"]
    assert (status, other["found"]) == ("failed", f"{image} is vLLM 0.32.0+cu130")
    assert other["wanted"] == "0.31.0, as engine.version says"
    # It is not pulled, and what could not be asked is no pass.
    absent = told("localhost/absent:1")
    assert absent["IMAGE.DIGEST"][0] == "failed"
    assert absent["VLLM.FLAGS"][0] == absent["VLLM.VERSION"][0] == "unknown"
    assert absent["VLLM.FLAGS"][1][0]["follows"] == "IMAGE.DIGEST"
