"""NCCL's own word on which network it took, and a run that asked for RDMA and got TCP."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from plankit import plan_of
from recipe_toolkit.check.catalog import BY_ID
from recipe_toolkit.plan.expect import Expect
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.values import Python
from recipe_toolkit.run.transport import kv_reads, networks
from runkit import Run, engine, plan

DATA = Path(__file__).parents[1] / "data"
SOCKET = "casper:71:90 [0] NCCL INFO NET/Socket : Using [0]enP7s7:10.0.0.3<0>"
IB = "casper:71:90 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:10.91.100.3<0>"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (SOCKET, {"Socket"}),
        (IB, {"IB"}),
        ("n:1:2 [0] NCCL INFO Using network Socket", {"Socket"}),
        ("(EngineCore pid=7) n:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0", {"IB"}),
        ("n:1:2 [0] NCCL INFO Bootstrap: Using enp1s0f1np1:10.91.100.3<0>", set()),
        ("INFO NET/Socket is what we would not want", set()),
    ],
)
def test_what_a_line_says(tmp_path, line, found):
    (tmp_path / "log").write_text(f"loading\n{line}\nready\n")
    assert set(networks(tmp_path / "log")) == found


def test_how_ucx_reads(tmp_path):
    # The UCX in NIXL 1.5.1, between two processes of a host; what it says of itself and of writes is of no interest.
    log = DATA / "ucx-proto-info.log"
    assert kv_reads(log) == [
        "zero-copy over cma/memory into host memory from host",
        "software emulation over tcp/lo into host memory from host",
    ]
    cut = tmp_path / "log"
    cut.write_text("ready\n" + log.read_text().replace("| 0..inf", "(EngineCore pid=7) INFO\n| 0..inf"))
    assert kv_reads(cut) == []


def test_ucx_is_told_to_say_it_where_kv_moves_by_nixl():
    assert plan_of("pd-share-node").process("decode-0").env["UCX_PROTO_INFO"] == "y"
    assert plan_of("pd-share-node", "engine.env.UCX_PROTO_INFO=n").process("decode-0").env["UCX_PROTO_INFO"] == "n"
    assert "UCX_PROTO_INFO" not in plan_of("tp16-dp2-four-nodes").processes[0].env


@pytest.fixture
def spanning(tmp_path):
    """Runs an instance over two nodes whose first process prints a line, with RDMA asked for or not."""
    made = []

    def run(line, env):
        head = engine("serve-0.0", 0, extra=("--say", line))
        headless = Process("serve-0.1", "serve", 0, 1, 1, (Python(), "-c", "import time; time.sleep(1000)"))
        what = plan([head, headless], nodes=2, entry="serve-0.0")
        # This machine has no lanes: what is looked for before the start is left out.
        check = Expect(env=env, skip=tuple(BY_ID)).to_json()
        made.append(Run(tmp_path / f"run{len(made)}", dataclasses.replace(what, check=check)).start())
        made[-1].wait()
        return made[-1]

    yield run
    for item in made:
        item.kill()


def test_tcp_where_rdma_was_asked_for_fails_the_run(spanning):
    run = spanning(SOCKET, {"NCCL_NET": "IB"})
    assert run.state["state"] == "failed"
    message = run.state["message"]
    assert message.startswith("prove: serve-0.0 on node 0 (")
    assert "uses NCCL's NET/Socket, and RDMA was asked for: casper:71:90" in message
    assert "log: attempts/0/nodes/00/serve-0.0.log" in message
    assert "hint: " in message


@pytest.mark.parametrize(("line", "env"), [(IB, {"NCCL_NET": "IB"}), (SOCKET, {})], ids=["rdma", "not asked for"])
def test_rdma_or_no_wish_for_it_is_no_failure(spanning, line, env):
    run = spanning(line, env)
    assert run.state["state"] == "done", run.state["message"]
    assert [event["networks"] for event in run.events("nccl") if event["process"] == "serve-0.0"] == [["IB"]] * bool(
        env
    )


def test_nccl_is_told_to_say_it_where_rdma_is_asked_of_it():
    rdma = plan_of("tp16-dp2-four-nodes", "engine.env.NCCL_NET=IB").processes[0].env
    assert (rdma["NCCL_DEBUG"], rdma["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")
    assert "NCCL_DEBUG" not in plan_of("tp16-dp2-four-nodes").processes[0].env
    own = plan_of("tp16-dp2-four-nodes", "engine.env.NCCL_NET=IB", "engine.env.NCCL_DEBUG=WARN").processes[0].env
    assert own["NCCL_DEBUG"] == "WARN"
