"""The shipped recipes of published systems against what was published: each difference has its reason."""

from __future__ import annotations

import shlex

import pytest

from plankit import ROOT, bindings, plan_file
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.recipe_loader import load_recipe

GLM = ROOT / "recipes" / "glm-5.2"
QWEN = ROOT / "recipes" / "qwen3.8-2.4t"

# vllm.ai/blog/2026-07-23-glm-5.2-nvfp4-b300-pd, 8.2 and 8.3.
PUBLISHED = {
    "prefill": """
        vllm serve /mnt/model/glm/GLM-5.2-NVFP4 --trust-remote-code
        --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
        --chat-template-content-format=string -ep -tp 1 -dp 4 --tool-call-parser glm47 --enable-auto-tool-choice
        --reasoning-parser glm45 --gpu-memory-utilization 0.92 --enable-prompt-tokens-details
        --speculative-config='{"method":"mtp","num_speculative_tokens":1}' --shutdown-timeout 300
        --fingerprint-mode=none
    """,
    "decode": """
        vllm serve /mnt/model/glm/GLM-5.2-NVFP4 --trust-remote-code --chat-template-content-format=string
        --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
        --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY"}' --max-num-batched-tokens 1024 -ep -tp 1 -dp 8
        --tool-call-parser glm47 --enable-auto-tool-choice --reasoning-parser glm45 --gpu-memory-utilization 0.90
        --enable-prompt-tokens-details --all2all-backend=flashinfer_nvlink_two_sided
        --speculative-config='{"method":"mtp","num_speculative_tokens":3}' --shutdown-timeout 300
        --fingerprint-mode=none
    """,
}
SHORT = {"-ep": "--enable-expert-parallel", "-tp": "--tensor-parallel-size", "-dp": "--data-parallel-size"}

# What the plan says otherwise, and why.
ADDED = {
    "--served-model-name": "clients ask for a name, not for a path of one site",
    "--host": "each process listens on its own node's address",
    "--port": "ports are reserved when the run begins",
}
ONLY_OF_SHARED_NODES = {
    "--device-ids": "two prefill instances share a node and see each other's GPUs",
}
CHANGED = {
    "--kv-transfer-config": "kv_load_failure_policy is written out: vLLM's default, fail",
    "--gpu-memory-utilization": "0.90 is 0.9",
}
ENV_ADDED = {
    "CUDA_DEVICE_ORDER": "numbers as nvidia-smi and Slurm count",
    "CUDA_VISIBLE_DEVICES": "four prefill instances share two nodes",
    "VLLM_HOST_IP": "the address that the nodes know each other by",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "by default localhost, which no other node reaches",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "by default 5600, which two instances of a node would share",
    "UCX_PROTO_INFO": "the transport that UCX chose stands in the log, and so in the results",
}


def flags(argv):
    """``--flag`` to its value (None without one), as the published commands and ours spell them."""
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    found, flag = {}, None
    for word in words:
        if word.startswith("-"):
            flag = SHORT.get(word, word)
            found[flag] = None
        elif flag is not None:
            found[flag], flag = word, None
    return found


@pytest.mark.parametrize("role", PUBLISHED)
def test_the_plan_of_glm_on_b300_is_what_was_published(role):
    plan = plan_file(GLM / "b300-4p1d.yaml", "plain")
    published = flags(shlex.split(PUBLISHED[role]))
    instances = [process for process in plan.processes if process.role == role]
    assert len(instances) == {"prefill": 4, "decode": 1}[role]
    for process in instances:
        bound = bind_process(process, bindings(plan))
        assert bound.argv[1:3] == ["serve", "/mnt/model/glm/GLM-5.2-NVFP4"]
        planned = flags(bound.argv)
        assert published.keys() - planned.keys() == set()
        assert planned.keys() - published.keys() <= {*ADDED, *ONLY_OF_SHARED_NODES}
        differing = {flag for flag, value in published.items() if planned[flag] != value}
        assert differing <= CHANGED.keys()
        assert float(planned["--gpu-memory-utilization"]) == float(published["--gpu-memory-utilization"])
        assert bound.env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
        site = {"UCX_NET_DEVICES", "HF_HUB_OFFLINE"}  # of the profile
        assert bound.env.keys() - site == {"VLLM_USE_V2_MODEL_RUNNER", *ENV_ADDED}


def test_glm_on_b300_takes_24_gpus_of_three_nodes():
    plan = plan_file(GLM / "b300-4p1d.yaml", "plain")
    assert [node.gpus for node in plan.nodes] == [8, 8, 8]
    assert (plan.gpus.allocated, plan.gpus.working, dict(plan.gpus.by_role)) == (24, 24, {"prefill": 16, "decode": 8})
    assert plan.slo == {"ttft_mean_s": 2.5, "tpot_mean_ms": 20}
    assert {point.isl for point in plan.benchmarks} >= {16384, 32768, 65536, 131072, 262144}


# The eight published configurations: instances and sizes of both roles, MTP, and decode's limits.
FRONTIER = {
    "c1-4": ((1, 8, 1), (8, 1), 3, (20, 80, 96), None, [1, 2, 4], 16),
    "c8-16": ((1, 4, 2), (8, 1), 3, (32, 128, 144), 2176, [8, 16], 16),
    "c32-64": ((1, 2, 4), (8, 1), 3, (80, 320, 336), 2176, [32, 64], 16),
    "c128": ((1, 2, 4), (4, 4), 3, (80, 320, 336), None, [128], 24),
    "c256": ((2, 2, 4), (4, 4), 3, (80, 320, 336), None, [256], 32),
    "c512": ((2, 2, 4), (4, 4), 3, (272, 1088, 1104), None, [512], 32),
    "c1024": ((3, 2, 4), (4, 4), 3, (272, 1088, 1104), None, [1024], 40),
    "c2560": ((4, 2, 4), (4, 4), 0, (656, 656, 672), None, [2560], 48),
}


@pytest.mark.parametrize("name", FRONTIER)
def test_a_point_of_the_qwen_frontier(name):
    (instances, *prefill_sizes), decode_sizes, drafts, limits, block, loads, gpus = FRONTIER[name]
    recipe = load_recipe(QWEN / f"gb300-8k1k-{name}.yaml").recipe
    prefill, decode = recipe.roles
    assert (prefill.instances, decode.instances) == (instances, 1)
    assert [prefill.parallel.tp, prefill.parallel.dp] == prefill_sizes
    assert (decode.parallel.tp, decode.parallel.dp) == decode_sizes
    assert [role.parallel.ep for role in recipe.roles] == [True, True]
    names = ("max-num-seqs", "max-cudagraph-capture-size", "max-num-batched-tokens")
    assert tuple(decode.args[key] for key in names) == limits
    assert (prefill.args["max-num-seqs"], prefill.args["max-num-batched-tokens"]) == (32, 16384)
    assert (recipe.engine.args.get("speculative-config") or {}).get("num_speculative_tokens", 0) == drafts
    assert recipe.engine.args.get("block-size") == block
    (benchmark,) = recipe.benchmarks
    assert (list(benchmark.concurrency), benchmark.isl, benchmark.osl) == (loads, 8192, 1024)
    assert plan_file(QWEN / f"gb300-8k1k-{name}.yaml", "plain").gpus.allocated == gpus


@pytest.mark.parametrize("name", FRONTIER)
def test_the_frontiers_own_rule_gives_decodes_limits(name):
    """max-num-seqs covers the largest load of a DP rank, CUDA graphs its drafts; files that share a setting say so."""
    recipe = load_recipe(QWEN / f"gb300-8k1k-{name}.yaml").recipe
    decode = recipe.roles[1]
    drafts = (recipe.engine.args.get("speculative-config") or {}).get("num_speculative_tokens", 0)
    largest = {"c128": 256, "c512": 1024}.get(name, max(recipe.benchmarks[0].concurrency))
    seats = largest // decode.parallel.dp + 16
    captured = seats * (1 + drafts)
    names = ("max-num-seqs", "max-cudagraph-capture-size", "max-num-batched-tokens")
    assert [decode.args[key] for key in names] == [seats, captured, captured + 16]


def test_glm_on_four_sparks():
    plan = plan_file(GLM / "spark-tp4.yaml", "plain")
    assert [node.gpus for node in plan.nodes] == [1, 1, 1, 1]
    assert [process.name for process in plan.processes] == [f"serve-0.{rank}" for rank in range(4)]
    for rank, process in enumerate(plan.processes):
        planned = flags(bind_process(process, bindings(plan)).argv)
        assert planned["--nnodes"] == "4"
        assert planned["--node-rank"] == str(rank)
        assert ("--headless" in planned) == (rank > 0)
        wanted = {
            "--tensor-parallel-size": "4",
            "--decode-context-parallel-size": "2",
            "--attention-backend": "B12X_MLA_SPARSE",
            "--kv-cache-dtype": "fp8_ds_mla",
            "--max-model-len": "163840",
            "--max-num-seqs": "6",
            "--max-num-batched-tokens": "4096",
            "--max-cudagraph-capture-size": "64",
            "--gpu-memory-utilization": "0.89",
        }
        assert {flag: planned.get(flag) for flag in wanted} == wanted
