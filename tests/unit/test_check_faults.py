"""Each injected fault is found by exactly its check, and names the node and the interface."""

from __future__ import annotations

import dataclasses
import json

import pytest

from checkkit import ABSENT, HCAS, HELP, IMAGE, IMEX, LANES, MODEL, SPARKS, VLLM, done, judge, sparks
from recipe_toolkit.check.catalog import BY_ID
from recipe_toolkit.check.evaluate import evaluate
from recipe_toolkit.check.lanes import pings
from recipe_toolkit.check.parse import parse
from recipe_toolkit.plan.expect import Expect

ONE, TWIN = LANES
NODE = "balthasar"


def sections(answers, node=NODE):
    return answers[node]["sections"]


def link(name, **fields):
    def change(answers):
        sections(answers)["net"]["interfaces"][name].update(fields)

    return change


def address(lane, local):
    def change(answers):
        net = sections(answers)["net"]
        held = json.loads(net["addresses"]["out"])
        next(item for item in held if item["ifname"] == lane)["addr_info"][0]["local"] = local
        net["addresses"] = done(json.dumps(held))

    return change


def put(section, **fields):
    return lambda answers: sections(answers)[section].update(fields)


def whole(section, value):
    return lambda answers: sections(answers).update({section: value})


def moved_gid(answers):
    for gid in sections(answers)["rdma"]["devices"]["rocep1s0f1"]["ports"]["1"]["gids"]:
        gid["index"] += 2


def without_hca(answers):
    del sections(answers)["rdma"]["devices"]["rocep1s0f1"]


def longer_name(answers):
    devices = sections(answers)["rdma"]["devices"]
    devices["rocep1s0f10"] = devices["rocep1s0f1"]


def port_down(answers):
    sections(answers)["rdma"]["devices"]["rocep1s0f1"]["ports"]["1"]["state"] = "1: DOWN"


def small_rdma_mtu(answers):
    sections(answers)["rdma"]["devices"]["rocep1s0f1"]["ibv"] = done("active_mtu: 1024 (3)")


def behind_management(answers):
    sections(answers)["net"]["routes"] = done(json.dumps([{"dev": ONE}]))


def other_driver(answers):
    driver = sections(answers)["driver"]
    text = json.dumps(driver).replace("580.95.05", "580.126.09")
    driver.update(json.loads(text))


def units(**limits):
    def change(answers):
        text = sections(answers)["units"]["out"]
        for name, value in limits.items():
            text = text.replace(f"Limit{name}={'infinity' if name == 'MEMLOCK' else '1048576'}", f"Limit{name}={value}")
        sections(answers)["units"] = done(text)

    return change


def clobbered(answers):
    info = {"Driver": "overlay2", "DriverStatus": [], "Runtimes": {"runc": {}}}
    sections(answers)["docker"].update(info=done(json.dumps(info)), daemon="{}")


def containerd(answers):
    status = [["driver-type", "io.containerd.snapshotter.v1"]]
    info = {"Driver": "overlayfs", "DriverStatus": status, "Runtimes": {"nvidia": {}}}
    sections(answers)["docker"]["info"] = done(json.dumps(info))


def image(**fields):
    found = {"id": "sha256:1", "digests": ["vllm@sha256:11"], "layers": ["sha256:a"], **fields}
    return put("images", **{IMAGE: done(json.dumps(found))})


def clock(ahead):
    def change(answers):
        for key in ("began", "ended"):
            answers[NODE][key] += ahead

    return change


def meminfo(**fields):
    def change(answers):
        lines = sections(answers)["system"]["meminfo"].splitlines()
        kept = [line for line in lines if line.partition(":")[0] not in fields]
        sections(answers)["system"]["meminfo"] = "\n".join([*kept, *(f"{k}: {v} kB" for k, v in fields.items())])

    return change


def weights(**fields):
    return put("model", **fields)


NO_DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
FAULTS = {
    "MTU 1500 on one side of one lane": (link(ONE, mtu="1500"), "LANE.MTU", ONE),
    "a lane without carrier": (link(ONE, carrier="0", operstate="down"), "LANE.UP", ONE),
    "a lane at half the speed": (link(ONE, speed="100000"), "LANE.SPEED", ONE),
    "twins in one subnet": (address(TWIN, "10.91.100.202"), "LANE.SUBNETS", ONE),
    "a lane in the network of docker0": (address(ONE, "172.17.0.9"), "LANE.SUBNETS", ONE),
    "a wrong address": (address(ONE, "10.91.200.2"), "LANE.ADDR", "10.91.200.2"),
    "an address that another node has": (address(ONE, "10.91.100.1"), "LANE.ADDR", "10.91.100.1"),
    "an address of autoconfiguration": (address(ONE, "169.254.7.7"), "LANE.ADDR", "169.254.7.7"),
    "GID index moved": (moved_gid, "HCA.GID", "index 5"),
    "HCA missing": (without_hca, "HCA.SET", "no rocep1s0f1"),
    "HCA down": (port_down, "HCA.SET", "DOWN"),
    "HCA prefix-ambiguous": (longer_name, "HCA.SET", "rocep1s0f10"),
    "RDMA MTU 1024": (small_rdma_mtu, "LANE.ACTIVE_MTU", "1024"),
    "/dev/infiniband missing": (put("rdma", dev={}), "RDMA.DEV", "uverbs"),
    "memlock small": (units(MEMLOCK="8388608"), "LIMIT.MEMLOCK", "8388608"),
    "nofile 1024": (units(NOFILE="1024"), "LIMIT.NOFILE", "1024"),
    "daemon.json clobbered": (clobbered, "DOCKER.NVIDIA", "runc"),
    "another image store": (containerd, "DOCKER.STORE", "containerd"),
    "same tag, another digest": (image(digests=["vllm@sha256:22"]), "IMAGE.DIGEST", "sha256:22"),
    "no image": (put("images", **{IMAGE: done(rc=1, err="Error: No such image: vllm:1")}), "IMAGE.DIGEST", IMAGE),
    "a flipped byte in a shard": (
        weights(deep={"against": "manifest", "bad": ["model-2.safetensors"], "hashed": 12, "sha256": "ff"}),
        "WEIGHTS.MANIFEST",
        "model-2.safetensors",
    ),
    "a missing shard": (weights(missing=["model-3.safetensors"]), "WEIGHTS.MANIFEST", "model-3.safetensors"),
    "a cut shard": (weights(cut=["model-3.safetensors (9 bytes)"]), "WEIGHTS.MANIFEST", "9 bytes"),
    "a dangling link": (weights(dangling=["model-4.safetensors"]), "WEIGHTS.MANIFEST", "model-4.safetensors"),
    "another model": (weights(config="11" * 32), "WEIGHTS.MANIFEST", "config.json"),
    "no model": (whole("model", {"path": MODEL, "there": False}), "WEIGHTS.MANIFEST", MODEL),
    "a full disk": (whole("disk", {"/runs": {"bytes": 5 << 20, "inodes": 9999}}), "DISK.FREE", "/runs"),
    "no inodes left": (whole("disk", {"/runs": {"bytes": 5 << 40, "inodes": 3}}), "DISK.FREE", "inodes"),
    "a port taken": (whole("ports", [22, 8000]), "PORT.FREE", "8000"),
    "a driver that differs": (other_driver, "DRIVER.PIN", "580.126.09"),
    "a driver that waits for a reboot": (
        put("driver", modinfo=done("580.126.09")),
        "DRIVER.LOADED",
        "580.95.05 is loaded",
    ),
    "a driver that is not held": (put("driver", holds=done("")), "DRIVER.HELD", "held"),
    "a driver of which only the container toolkit is held": (
        put("driver", holds=done("nvidia-container-toolkit\nlibnvidia-container1\n")),
        "DRIVER.HELD",
        "held",
    ),
    "a blacklist of the container toolkit": (
        put("driver", holds=done(""), apt=done('Unattended-Upgrade::Package-Blacklist:: "nvidia-container";')),
        "DRIVER.HELD",
        "held",
    ),
    "a management NIC behind an HCA": (behind_management, "LANE.NOT_MGMT", ONE),
    "clocks apart": (clock(30), "CLOCK.SAME", "ahead"),
    "a clock behind": (clock(-30), "CLOCK.SAME", "behind"),
    "another kernel": (put("system", kernel="6.14.0"), "OS.SAME", "6.14.0"),
    "kexec handover": (meminfo(CmaFree=70000), "KERNEL.KHO", "CmaFree"),
    "a GPU fallen off": (put("driver", gpus=done("")), "GPU.COUNT", "0 GPUs"),
    "an Xid": (put("klog", bad=["NVRM: Xid 79, GPU has fallen off the bus"]), "GPU.KLOG", "Xid 79"),
    "stuck at low power": (whole("power", done("0, 14.00, 611, 96\n")), "GPU.LOWPOWER", "611"),
    "peermem on GB10": (put("driver", peermem=True), "GDR.EXPECT", "peermem"),
    "memory taken": (meminfo(MemFree=60000000), "MEM.FREE", "MiB free"),
    "swap": (put("system", swaps="Filename\n/swap.img file"), "MEM.GUARD", "swap"),
    "no libibverbs": (whole("inside", {IMAGE: done("1048576\nunlimited\n0\n")}), "RDMA.LIB", "libibverbs"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_exactly_its_check(fault):
    change, check, told = FAULTS[fault]
    answers = sparks()
    change(answers)
    report = judge(answers)
    assert report.failed == (check,)
    assert not report.ok
    found = [finding for item in report.outcomes for finding in item.findings if finding.status == "failed"]
    assert all(NODE in finding.nodes for finding in found)
    assert told in " ".join(finding.found for finding in found)
    assert all(finding.wanted for finding in found)


def test_four_nodes_that_are_well():
    report = judge(sparks())
    assert report.failed == ()
    assert [item.check.id for item in report.outcomes if item.status == "unknown"] == []
    assert report.ok
    assert report.count("passed") >= 25


def test_a_switch_that_drops_large_packets_is_found_between_its_pair():
    report = judge(sparks(), unreached={(NODE, "casper", ONE)})
    assert report.failed == ("LANE.JUMBO",)
    found = next(item for item in report.outcomes if item.check.id == "LANE.JUMBO").findings
    assert [finding.nodes for finding in found] == [(NODE, "casper")]
    assert ONE in found[0].found


def test_what_follows_from_a_fault_is_named_so_and_is_no_pass():
    answers = sparks()
    link(ONE, mtu="1500")(answers)
    report = judge(answers, unreached={(NODE, "casper", ONE), ("casper", NODE, ONE)})
    assert report.failed == ("LANE.MTU",)
    jumbo = next(item for item in report.outcomes if item.check.id == "LANE.JUMBO")
    assert jumbo.status == "unknown"
    assert {finding.follows for finding in jumbo.findings} == {"LANE.MTU"}


def test_a_fault_of_one_lane_explains_nothing_of_the_other():
    answers = sparks()
    link(ONE, mtu="1500")(answers)
    assert judge(answers, unreached={(NODE, "casper", TWIN)}).failed == ("LANE.MTU", "LANE.JUMBO")


def test_an_unreachable_node_is_named_and_the_others_are_judged():
    answers = sparks()
    del answers[NODE]
    whole("ports", [8000])({NODE: answers["casper"]})
    report = judge(answers, lost={NODE: "ssh: connect to host balthasar port 22: No route to host"})
    assert report.failed == ("SSH.BATCH", "PORT.FREE")
    reach = next(item for item in report.outcomes if item.check.id == "SSH.BATCH")
    assert reach.findings[0].nodes == (NODE,)
    assert "No route to host" in reach.findings[0].found


RACK = dataclasses.replace(SPARKS, gpu="GB300", gpus=4, runtime="none")


@pytest.mark.parametrize(
    ("text", "status", "found"),
    [
        (IMEX, "passed", ""),
        (IMEX.replace("98    - READY  ", "98    - WAITING_FOR_PEERS  "), "failed", "98 - WAITING_FOR_PEERS"),
        (IMEX.replace("State: UP", "State: DEGRADED"), "failed", "the domain is DEGRADED"),
        ("READY\n", "unknown", "prints no nodes: READY"),
    ],
)
def test_imex_is_ready_where_each_node_is_and_the_domain_is_up(text, status, found):
    answers = sparks()
    sections(answers)["imex"]["ctl"] = done(text)
    outcome = next(item for item in judge(answers, RACK).outcomes if item.check.id == "IMEX.READY")
    assert outcome.status == status
    assert all(NODE in finding.nodes and found in finding.found for finding in outcome.findings)


@pytest.mark.parametrize(
    ("holds", "apt"),
    [
        ("nvidia-headless-580-server-open\n", ""),
        ("libnvidia-compute-580\n", ""),
        ("", 'Unattended-Upgrade::Package-Blacklist:: "nvidia-";\nUnattended-Upgrade::Package-Blacklist:: "(";'),
    ],
)
def test_a_driver_is_held_by_its_packages_or_by_a_blacklist_that_takes_them_in(holds, apt):
    answers = sparks()
    sections(answers)["driver"].update(holds=done(holds), apt=done(apt))
    assert judge(answers).ok


def test_a_ping_that_may_not_be_sent_says_nothing_of_the_lane():
    nodes = [parse(name, [answer]) for name, answer in sparks().items()]
    refused = {"rc": 2, "err": "ping: socktype: SOCK_RAW: Operation not permitted"}
    for node in nodes:
        node.pings = tuple({**ping, **refused} for ping in pings(SPARKS, nodes)[node.name])
    outcome = evaluate(SPARKS, nodes, [BY_ID["LANE.JUMBO"]]).outcomes[0]
    assert outcome.status == "unknown"


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (put("driver", gpus=ABSENT, loaded=None), "GPU.COUNT"),
        (whole("klog", {"rc": 0, "err": "", "lines": 0, "bad": []}), "GPU.KLOG"),
        (put("docker", info=done(rc=1, err="permission denied"), daemon=None), "DOCKER.NVIDIA"),
        (whole("rdma", {"error": "PermissionError: no"}), "RDMA.DEV"),
        (whole("model", {"error": "OSError: stale file handle"}), "WEIGHTS.MANIFEST"),
        (put("net", addresses=ABSENT), "LANE.ADDR"),
        (
            put("docker", info=done('{"Driver":"","DriverStatus":null,"Runtimes":null}\n', err=NO_DAEMON)),
            "DOCKER.STORE",
        ),
        (whole("images", {IMAGE: done("[]")}), "IMAGE.DIGEST"),
        (put("driver", gpus=done("Unable to determine the device handle for GPU0: Unknown Error\n")), "GPU.COUNT"),
        (whole("power", done("0, 14.00, [N/A], 96\n")), "GPU.LOWPOWER"),
        (put("driver", gpus=done("0, NVIDIA GB10, 580.95.05, 143771, [N/A]\n")), "MEM.FREE"),
        (put("driver", gpus=done("0, NVIDIA H200, 580.95.05, [N/A], [N/A]\n")), "MEM.FREE"),
    ],
    ids=[
        "nvidia-smi",
        "journal",
        "docker",
        "sysfs",
        "model",
        "ip",
        "no daemon",
        "image",
        "handle",
        "clock",
        "free memory",
        "memory",
    ],
)
def test_what_cannot_be_read_is_unknown_and_no_pass(change, check):
    answers = sparks()
    change(answers)
    report = judge(answers)
    assert report.failed == ()
    assert not report.ok
    outcome = next(item for item in report.outcomes if item.check.id == check)
    assert outcome.status == "unknown"
    assert all(NODE in finding.nodes and finding.found for finding in outcome.findings)


def test_names_that_are_whole_are_not_ambiguous():
    answers = sparks()
    longer_name(answers)
    env = {**SPARKS.env, "NCCL_IB_HCA": f"={','.join(HCAS)}"}
    assert judge(answers, dataclasses.replace(SPARKS, env=env)).failed == ()


def test_lanes_are_those_behind_the_devices_where_the_profile_names_none():
    answers = sparks()
    link(ONE, mtu="1500")(answers)
    assert judge(answers, dataclasses.replace(SPARKS, lanes={})).failed == ("LANE.MTU",)


def test_nothing_is_held_against_a_recipe_without_gpus():
    answers = sparks()
    for fault in (
        "MTU 1500 on one side of one lane",
        "GID index moved",
        "memlock small",
        "no model",
        "a GPU fallen off",
    ):
        FAULTS[fault][0](answers)
    report = judge(answers, Expect(device="cpu", sim=True))
    assert {item.check.id for item in report.outcomes if item.status != "skipped"} == {
        "SSH.BATCH",
        "OS.SAME",
        "KERNEL.KHO",
        "CLOCK.SAME",
    }


def test_a_check_that_is_left_out_is_skipped_and_nothing_passes_by_itself():
    answers = sparks()
    whole("ports", [8000])(answers)
    expect = dataclasses.replace(SPARKS, skip=("PORT.FREE",))
    assert judge(answers, expect).ok
    only = [item.check for item in judge(answers, expect).outcomes if item.check.id == "PORT.FREE"]
    assert not judge(answers, expect, only).ok


def asked(node=None, version="0.32.0+cu130", text=HELP, wanted="0.32.0", **fields):
    """The report on Sparks whose vLLM is asked; ``node``: the only one that answers so."""
    answers = sparks()
    for name, answer in answers.items():
        other = node is not None and name != node
        answer["sections"]["vllm"] = {
            "version": done("0.32.0+cu130\n" if other else f"INFO: a plugin\n{version}\n"),
            "help": done(HELP if other else text),
        }
    return judge(answers, dataclasses.replace(SPARKS, vllm={**VLLM, "version": wanted, **fields}))


def findings(report, check):
    return next(item for item in report.outcomes if item.check.id == check).findings


def test_a_vllm_that_takes_every_flag():
    report = asked()
    assert report.ok
    assert {item.status for item in report.outcomes if item.check.id.startswith("VLLM")} == {"passed"}


def test_a_flag_that_one_nodes_vllm_lacks_names_the_role_and_the_node():
    report = asked(NODE, text=HELP.replace("--max-num-seqs", "--max-num-sequences"))
    assert report.failed == ("VLLM.FLAGS",)
    (finding,) = findings(report, "VLLM.FLAGS")
    assert finding.nodes == (NODE,)
    assert finding.found == f"prefill: {IMAGE} (0.32.0+cu130): this vLLM has no flag --max-num-seqs"
    assert finding.wanted == "did you mean `max-num-sequences`?"


def test_a_flag_that_is_gone_says_since_when():
    commands = {"serve": [["serve", "/m", "--monokernel"], ["serve", "/m", "--monokernel", "--all2all-backend", "x"]]}
    report = asked(commands=commands, version="0.32.0")
    first, second = findings(report, "VLLM.FLAGS")
    assert "has no flag --monokernel; 0.33.0 is the first to have it" in first.found
    assert "--all2all-backend: 'x' is none of the values" in second.found
    assert len(first.nodes) == 4


def test_setup_steps_may_add_a_flag_so_it_cannot_be_told():
    report = asked(commands={"serve": [["serve", "/m", "--ours"]]}, setup=True)
    (finding,) = findings(report, "VLLM.FLAGS")
    assert (finding.status, report.ok) == ("unknown", False)
    assert "the setup steps may add it" in finding.found


@pytest.mark.parametrize("text", ["", HELP[:3000]])
def test_a_help_that_is_none_is_no_pass(text):
    report = asked(text=text)
    assert not report.ok
    assert [item.status for item in findings(report, "VLLM.FLAGS")] == ["unknown"]


@pytest.mark.parametrize(
    ("wanted", "found", "status"),
    [
        ("0.32.0", "0.32.0", "passed"),
        ("0.32.0", "0.32.1", "failed"),
        ("0.33.1.dev5+gabc123", "0.33.1.dev5+gabc1234.cu130", "passed"),
        ("0.33.1.dev5+gabc123", "0.33.1.dev6+gdef", "failed"),
        ("0.32.0", "0.1.dev1+g1234", "unknown"),
        ("0.32.0", "who knows", "unknown"),
        ("nightly", "0.34.1.dev1", "skipped"),
    ],
)
def test_versions(wanted, found, status):
    report = asked(version=found, wanted=wanted)
    assert next(item.status for item in report.outcomes if item.check.id == "VLLM.VERSION") == status


def test_a_vllm_that_does_not_start_says_its_last_words():
    answers = sparks()
    for answer in answers.values():
        said = done(rc=1, err="Traceback (most recent call last):\n  File\nImportError: libcuda.so.1")
        answer["sections"]["vllm"] = {"version": said, "help": said}
    report = judge(answers, dataclasses.replace(SPARKS, vllm=VLLM))
    (finding,) = findings(report, "VLLM.FLAGS")
    assert finding.found == f"{IMAGE}: vllm serve --help=all: ImportError: libcuda.so.1"
    assert len(finding.nodes) == 4
    assert not report.ok
