"""Rules that look at the profile, and at what is known of the model: what each finds, and what it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_support import changed
from recipe_toolkit.cli.advice import site_problems
from recipe_toolkit.cluster_loader import load_profile
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.feasibility.lint import SITE_RULES
from recipe_toolkit.fitting import Memory, memory_of
from recipe_toolkit.recipe_loader import load_recipe

ROOT = Path(__file__).parents[2]

# Decode is larger than a node, and takes KV from prefill on other nodes.
RECIPE = """\
schema: 1
name: linted
model: {path: /models/m, served_name: m}
engine: {kind: vllm, version: "0.26.0", image: "vllm/vllm-openai:v0.26.0", args: {max-model-len: 4096}}
resources: {gpu: H200, gpus_per_node: 8}
roles:
  prefill: {instances: 2, parallel: {tp: 8}, args: {}}
  decode: {parallel: {tp: 4, dp: 4, ep: true}, args: {}}
kv_transfer: {connector: nixl}
benchmarks: [{client: aiperf, isl: 1024, osl: 128, concurrency: [16], requests_per_concurrency: 10}]
deadlines: {ready: 30m}
"""
PROFILE = """\
schema: 1
name: site
scheduler: slurm
runs: /runs
interface: bond0
container: {runtime: docker, args: [--shm-size=8g]}
env:
  UCX_NET_DEVICES: mlx5_0:1,mlx5_1:1
  UCX_TLS: rc,cuda_copy,sm,self,tcp
  NCCL_IB_HCA: mlx5_0
"""
READS = {"prefill": 400e9, "decode": 1200e9}
DEVICES, TLS, HCA = (
    "  UCX_NET_DEVICES: mlx5_0:1,mlx5_1:1\n",
    "  UCX_TLS: rc,cuda_copy,sm,self,tcp\n",
    "  NCCL_IB_HCA: mlx5_0",
)
LIMIT = 'engine: {kind: vllm, env: {VLLM_ENGINE_READY_TIMEOUT_S: "%s"},'


def found(folder: Path, *changes: tuple[str, str], reads: dict[str, float] | None = None) -> list[Problem]:
    """What is said of the two files, each change made in the one that holds its text."""
    recipe = changed(*(item for item in changes if item[0] in RECIPE), text=RECIPE)
    profile = changed(*(item for item in changes if item[0] not in RECIPE), text=PROFILE)
    (folder / "r.yaml").write_text(recipe, encoding="utf-8")
    (folder / "site.yaml").write_text(profile, encoding="utf-8")
    return site_problems(load_recipe(folder / "r.yaml"), load_profile(folder / "site.yaml"), Memory(reads=reads or {}))


def test_nothing_is_said_of_what_is_meant(tmp_path):
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("rule", "change", "place", "message"),
    [
        ("kv-device-unnamed", (DEVICES, ""), ("site.yaml", "env"), "does not say UCX_NET_DEVICES"),
        (
            "kv-over-tcp",
            (DEVICES, "  UCX_NET_DEVICES: eth0,bond0\n"),
            ("site.yaml", "env.UCX_NET_DEVICES"),
            "eth0,bond0 names no RDMA device",
        ),
        (
            "kv-over-tcp",
            (TLS, "  UCX_TLS: cuda_copy,tcp\n"),
            ("site.yaml", "env.UCX_TLS"),
            "cuda_copy,tcp has no transport with RDMA",
        ),
        (
            "kv-over-tcp",
            ("decode: {", "decode: {env: {UCX_TLS: tcp}, "),
            ("r.yaml", "roles.decode.env.UCX_TLS"),
            "tcp has no transport with RDMA",
        ),
        ("nccl-device-unnamed", (HCA, "  A: b"), ("site.yaml", "env"), "instances of decode are larger than a node"),
        ("nccl-over-tcp", (HCA, '  NCCL_IB_DISABLE: "1"'), ("site.yaml", "env.NCCL_IB_DISABLE"), "NCCL goes over TCP"),
        ("nccl-over-tcp", (HCA, "  NCCL_NET: Socket"), ("site.yaml", "env.NCCL_NET"), "NCCL goes over TCP"),
        (
            "nccl-other-interface",
            (HCA, HCA + "\n  NCCL_SOCKET_IFNAME: eno"),
            ("site.yaml", "env.NCCL_SOCKET_IFNAME"),
            "eno leaves out bond0",
        ),
        (
            "nccl-other-interface",
            (HCA, HCA + "\n  NCCL_SOCKET_IFNAME: ^lo,bond"),
            ("site.yaml", "env.NCCL_SOCKET_IFNAME"),
            "^lo,bond leaves out bond0",
        ),
        (
            "nccl-other-interface",
            (HCA, HCA + "\n  GLOO_SOCKET_IFNAME: bond"),
            ("site.yaml", "env.GLOO_SOCKET_IFNAME"),
            "bond leaves out bond0",
        ),
        ("management-interface", ("bond0", "mgmt0"), ("site.yaml", "interface"), "mgmt0 seems to be no network"),
        (
            "management-interface",
            (HCA, HCA + "\n  NCCL_SOCKET_IFNAME: docker0,bond0"),
            ("site.yaml", "env.NCCL_SOCKET_IFNAME"),
            "docker0 seems to be no network",
        ),
        ("peers-hidden", ("--shm-size=8g", "--gpus, device=0"), ("site.yaml", "container.args.0"), "--gpus device=0"),
        ("peers-hidden", ("--shm-size=8g", "--gpus=2"), ("site.yaml", "container.args.0"), "--gpus 2 hides"),
        (
            "peers-hidden",
            ("--shm-size=8g", '--env, "CUDA_VISIBLE_DEVICES=0,1"'),
            ("site.yaml", "container.args.0"),
            "--env CUDA_VISIBLE_DEVICES=0,1 hides",
        ),
        (
            "peers-hidden",
            ("--shm-size=8g", "--device=nvidia.com/gpu=1"),
            ("site.yaml", "container.args.0"),
            "--device nvidia.com/gpu=1 hides",
        ),
        (
            "blocks-may-differ-on-hybrid",
            ("max-model-len: 4096", "max-model-len: 4096, mamba-ssm-cache-dtype: bfloat16"),
            ("r.yaml", "roles.decode.parallel.tp"),
            "prefill has tp 8 and decode tp 4, on a model with a state",
        ),
    ],
)
def test_rule(tmp_path, rule, change, place, message):
    said = found(tmp_path, change)
    assert [(Path(item.file).name, item.field, item.rule, item.severity) for item in said] == [
        (*place, rule, SITE_RULES[rule].severity)
    ]
    assert message in said[0].message
    assert said[0].line > 0
    # The recipe answers it, or the profile does for all recipes.
    for file in (
        ("deadlines: {ready: 30m}", f"lint: {{{rule}: it is meant}}"),
        ("runs: /runs", f"runs: /r\nlint: {{{rule}: x}}"),
    ):
        assert found(tmp_path, change, file) == []


@pytest.mark.parametrize(
    ("rule", "changes", "field", "message", "hint"),
    [
        (
            "ready-too-short",
            [("ready: 30m", "ready: 5m"), ("engine: {kind: vllm,", LIMIT % 3600)],
            "deadlines.ready",
            "a node of decode reads 1,200 GB of weights: 10 min at 2 GB/s, and ready allows 5 min",
            "ready: 20m or more",
        ),
        (
            "engine-timeout-too-short",
            [("engine: {kind: vllm,", LIMIT % 500)],
            "engine.env.VLLM_ENGINE_READY_TIMEOUT_S",
            "1,200 GB of weights: 10 min at 2 GB/s, and vLLM waits 500 s for its engines",
            'VLLM_ENGINE_READY_TIMEOUT_S: "1200" in engine.env',
        ),
    ],
)
def test_limits_against_weights(tmp_path, rule, changes, field, message, hint):
    (problem,) = found(tmp_path, *changes, reads=READS)
    assert (problem.rule, problem.severity, problem.field, problem.hint) == (rule, "warning", field, hint)
    assert message in problem.message
    assert found(tmp_path, *changes) == []  # nothing is known of the model
    dummy = ("max-model-len: 4096", "load-format: dummy")
    assert found(tmp_path, *changes, dummy, reads=READS) == []


def test_vllm_waits_ten_minutes_where_nothing_is_said(tmp_path):
    assert found(tmp_path, reads=READS) == []
    (problem,) = found(tmp_path, reads={"decode": 1202e9})
    assert (problem.rule, Path(problem.file).name) == ("engine-timeout-too-short", "r.yaml")
    assert found(tmp_path, (HCA, HCA + '\n  VLLM_ENGINE_READY_TIMEOUT_S: "900"'), reads={"decode": 1202e9}) == []


def test_every_rule_is_tried():
    (one,), (other,) = test_rule.pytestmark, test_limits_against_weights.pytestmark
    assert {row[0] for mark in (one, other) for row in mark.args[1]} == SITE_RULES.keys()


@pytest.mark.parametrize(
    "changes",
    [
        [(DEVICES, "  UCX_CUDA_IPC_ENABLE_MNNVL: y\n")],
        [(DEVICES, "  UCX_NET_DEVICES: all\n"), (TLS, "  UCX_TLS: ^sm\n")],
        [(TLS, "  UCX_TLS: rc_mlx5,tcp\n")],
        [(TLS, "")],
        [(HCA, '  NCCL_MNNVL_ENABLE: "1"\n  NCCL_IB_DISABLE: "1"')],
        [(HCA, "  NCCL_NET: AWS Libfabric")],
        [(HCA, HCA + '\n  NCCL_SOCKET_IFNAME: "=bond0"\n  GLOO_SOCKET_IFNAME: bond0')],
        [(HCA, HCA + "\n  NCCL_SOCKET_IFNAME: ^lo,docker")],
        [("--shm-size=8g", "--gpus=all")],
        [("--shm-size=8g", "--device, /dev/nvidia0")],
        # One machine, no network between its nodes.
        [("scheduler: slurm", "scheduler: local"), (DEVICES, ""), (HCA, "  A: b")],
        # No KV between nodes, and no instance larger than one.
        [
            ("connector: nixl", "connector: example"),
            ("tp: 8", "tp: 1"),
            ("tp: 4, dp: 4", "tp: 1, dp: 8"),
            (DEVICES, ""),
            (HCA, "  A: b"),
        ],
        [("kind: vllm", "kind: sim"), (DEVICES, "")],
        [
            ("max-model-len: 4096", "max-model-len: 4096, mamba-ssm-cache-dtype: bfloat16, block-size: 2176"),
        ],
        [
            ('0.26.0", image', '0.32.0", image'),
            ("v0.26.0", "v0.32.0"),
            ("max-model-len", "mamba-cache-dtype: auto, max-model-len"),
        ],
    ],
)
def test_what_is_meant_is_let_pass(tmp_path, changes):
    assert found(tmp_path, *changes) == []


def test_a_profile_answers_rules_that_look_at_it_and_no_others(tmp_path):
    (tmp_path / "site.yaml").write_text(PROFILE + "lint: {kv-ovr-tcp: x, eager-decode: y}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_profile(tmp_path / "site.yaml")
    assert [(item.field, item.message) for item in caught.value.problems] == [
        ("lint.kv-ovr-tcp", "is no rule"),
        ("lint.eager-decode", "is no rule"),
    ]
    assert caught.value.problems[0].hint == "did you mean `kv-over-tcp`?"


@pytest.mark.parametrize(
    ("folder", "profile"),
    [("glm-5.2/b300", "b300"), ("qwen3.8-2.4t/gb300", "gb300-nvl72"), ("glm-5.2/spark", "dgx-spark")],
)
def test_shipped_recipes_are_meant_on_their_profiles(folder, profile):
    site = load_profile(ROOT / "recipes" / "clusters" / f"{profile}.yaml")
    files = sorted((ROOT / "recipes").glob(f"{folder}*.yaml"))
    assert files
    for file in files:
        recipe = load_recipe(file)
        assert site_problems(recipe, site, memory_of(recipe.recipe, site.cluster)) == [], file
