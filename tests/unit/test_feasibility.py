"""What a well-formed recipe asks for and cannot have: one row a mistake, with its place and its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_support import GOOD, changed, problems, said
from recipe_toolkit.feasibility import check_recipe
from recipe_toolkit.feasibility.benchmarks import human_integer
from recipe_toolkit.feasibility.layout import local_replicas
from recipe_toolkit.feasibility.variables import looks_secret
from recipe_toolkit.recipe import Parallel

SERVE = changed(
    (
        "  prefill: {instances: 2, parallel: {tp: 2}, args: {max-num-seqs: 8}}\n"
        "  decode: {instances: 1, parallel: {tp: 4, dp: 2}, args: {max-num-seqs: 16}}\n",
        "  serve: {instances: 1, parallel: {tp: 2}}\n",
    ),
    ("kv_transfer: {connector: nixl}\n", ""),
)


def serve(parallel: str, instances: int = 1) -> str:
    return changed(("instances: 1, parallel: {tp: 2}", f"instances: {instances}, parallel: {{{parallel}}}"), text=SERVE)


def test_a_report_of_nothing(tmp_path: Path) -> None:
    text = changed(("deadlines:", "published: [{concurrency: 8}, {metrics: {tpot_mean_ms: 9}}]\ndeadlines:"))
    expected = "r.yaml:18:13: published.0: reports nothing\n  hint: metrics: {tpot_mean_ms: 20}, or accuracy"
    assert said(tmp_path, text) == [expected]


def test_the_recipes_that_the_rows_change_are_good(tmp_path: Path) -> None:
    assert said(tmp_path, GOOD, warnings=True) == said(tmp_path, SERVE, warnings=True) == []


LAYOUTS_THAT_WORK = [
    "tp: 1",
    "tp: 8",
    "tp: 2, pp: 4",
    "tp: 16",
    "tp: 8, pp: 2",
    "tp: 4, dp: 4",
    "tp: 2, dp: 3",
    "tp: 1, dp: 16, ep: true",
    "dp: 12",
    "tp: 16, dp: 2, ep: true",
    "tp: 8, dcp: 4",
    "tp: 4, dp: 4, dp_lb: hybrid",
    "tp: 8, dp: 2, ep: true, dp_lb: hybrid",
]


@pytest.mark.parametrize("parallel", LAYOUTS_THAT_WORK)
def test_layouts_that_work(tmp_path: Path, parallel: str) -> None:
    assert said(tmp_path, serve(parallel), warnings=True) == []


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (
            "tp: 3",
            "r.yaml:11:40: roles.serve.parallel.tp: a replica of tp 3 x pp 1 = 3 GPUs does not divide a node of "
            "8 GPUs\n"
            "  hint: sizes that divide it: 1, 2, 4, 8; or use fewer GPUs of each node: resources.gpus_per_node",
        ),
        (
            "tp: 2, pp: 3",
            "r.yaml:11:47: roles.serve.parallel.pp: a replica of tp 2 x pp 3 = 6 GPUs does not divide a node of "
            "8 GPUs\n"
            "  hint: sizes that divide it: 1, 2, 4, 8; or use fewer GPUs of each node: resources.gpus_per_node",
        ),
        (
            "tp: 12",
            "r.yaml:11:40: roles.serve.parallel.tp: a replica of tp 12 x pp 1 = 12 GPUs does not fill whole "
            "nodes of 8 GPUs\n"
            "  hint: a replica that spans nodes takes each of them whole: 8 or 16 GPUs",
        ),
        (
            "tp: 4, dp: 5",
            "r.yaml:11:47: roles.serve.parallel.dp: dp 5 cannot be spread evenly over nodes that hold 2 replicas each\n"
            "  hint: each node of an instance takes as many replicas; dp 4 or 6 would fill its nodes",
        ),
        (
            "tp: 16, dp: 2",
            "r.yaml:11:48: roles.serve.parallel.dp: dp 2 with replicas that span nodes does not start with a dense "
            "model: every replica takes the same master port, and the first to lose it stops the instance\n"
            "  hint: use 2 instances with dp 1; if the model is a mixture of experts, say ep: true",
        ),
        (
            "tp: 4, dcp: 3",
            "r.yaml:11:48: roles.serve.parallel.dcp: dcp 3 does not divide tp 4\n"
            "  hint: the ranks of one tensor parallel group share the KV cache out; dcp adds no GPUs",
        ),
        (
            "tp: 4, dp: 2, dp_lb: hybrid",
            "r.yaml:11:57: roles.serve.parallel.dp_lb: hybrid balances between nodes, and this instance stands on one\n"
            "  hint: dp_lb: internal, or separate instances behind the router",
        ),
        (
            "tp: 16, dp: 2, ep: true, dp_lb: hybrid",
            "r.yaml:11:68: roles.serve.parallel.dp_lb: hybrid needs whole replicas on each node; a replica of 16 GPUs "
            "spans nodes of 8\n"
            "  hint: dp_lb: internal, or separate instances behind the router",
        ),
        (
            "tp: 8, dp: 2, dp_lb: hybrid",
            "r.yaml:11:57: roles.serve.parallel.dp_lb: hybrid with one replica a node does not start with a dense "
            "model\n"
            "  hint: dp_lb: internal, or separate instances behind the router",
        ),
        (
            "ep: true",
            "r.yaml:11:40: warning: roles.serve.parallel.ep: experts are spread over tp x dp = 1 GPU: this "
            "changes nothing",
        ),
        (
            "tp: 4096, dp: 4096",
            "r.yaml:11:3: roles.serve: 1 x 16777216 GPUs are more than the 100000 that a plan can hold",
        ),
    ],
)
def test_layouts_that_do_not(tmp_path: Path, parallel: str, message: str) -> None:
    assert said(tmp_path, serve(parallel), warnings=True) == [message]


@given(tp=st.integers(1, 32), pp=st.integers(1, 4), dp=st.integers(1, 40), gpus=st.integers(1, 16))
def test_local_replicas_fill_no_node_beyond_its_gpus(tp: int, pp: int, dp: int, gpus: int) -> None:
    local = local_replicas(Parallel(tp=tp, pp=pp, dp=dp), gpus)
    if local:
        assert dp % local == 0
        assert local * tp * pp <= gpus


PAIR = [
    (
        [("tp: 4, dp: 2", "tp: 8"), ("tp: 2}", "tp: 1}")],
        [],
    ),
    (
        [("gpus_per_node: 8", "gpus_per_node: 6"), ("tp: 4, dp: 2", "tp: 3"), ("instances: 2", "instances: 3")],
        [
            "r.yaml:12:41: roles.decode.parallel.tp: tp 3 of decode and tp 2 of prefill do not divide one another\n"
            "  hint: the KV cache of one rank must map to whole ranks of the other side"
        ],
    ),
    (
        [("connector: nixl", "connector: decode-bench")],
        [
            "r.yaml:13:26: kv_transfer.connector: decode-bench takes the place of prefill\n"
            "  hint: decode alone stands in roles.serve"
        ],
    ),
    (
        [("  prefill: {instances: 2, parallel: {tp: 2}, args: {max-num-seqs: 8}}\n", "")],
        [
            "r.yaml:10:1: roles.prefill: missing: decode needs it\n  hint: serve does both in one role",
            "r.yaml:12:1: kv_transfer: there is no prefill and decode to move KV between\n"
            "  hint: leave it out, or split serve into prefill and decode",
        ],
    ),
    (
        [("roles:\n", "roles:\n  serve: {}\n")],
        ["r.yaml:11:3: roles.serve: serve stands alone, without prefill and decode"],
    ),
    (
        [("kv_transfer: {connector: nixl}\n", "")],
        [
            "r.yaml:1:1: kv_transfer: missing: prefill hands its KV cache to decode\n"
            "  hint: kv_transfer: {connector: nixl}"
        ],
    ),
    (
        [("{connector: nixl}", "{connector: example}")],
        [
            "r.yaml:11:42: roles.prefill.parallel.tp: tp 2 with the connector example: all ranks write a layer to the "
            "same file\n  hint: connector: nixl, or tp: 1",
            "r.yaml:12:41: roles.decode.parallel.tp: tp 4 with the connector example: all ranks write a layer to the "
            "same file\n  hint: connector: nixl, or tp: 1",
        ],
    ),
    (
        [
            ("{connector: nixl}", "{connector: example, extra: {shared_storage_path: /x}}"),
            ("tp: 2}", "tp: 1}"),
            ("tp: 4", "tp: 1"),
        ],
        [
            "r.yaml:13:43: kv_transfer.extra.shared_storage_path: cannot be set: the files lie in the run folder\n"
            "  hint: leave it out"
        ],
    ),
    (
        [("gpu: H200,", "device: cpu,"), ("{connector: nixl}", "{connector: nixl, buffer_device: cuda}")],
        ["r.yaml:13:47: kv_transfer.buffer_device: cuda buffers on device cpu\n  hint: buffer_device: cpu"],
    ),
    (
        [("{policy: round_robin}", "{kind: none}")],
        ["r.yaml:14:16: router.kind: prefill and decode need a router\n  hint: kind: vllm-router"],
    ),
    (
        [("{policy: round_robin}", "{policy: power_of_two}")],
        [
            "r.yaml:14:18: router.policy: power_of_two chooses between two, and decode has one instance\n"
            "  hint: policy: round_robin, or more instances"
        ],
    ),
]


@pytest.mark.parametrize(("changes", "messages"), PAIR)
def test_prefill_and_decode(tmp_path: Path, changes: list[tuple[str, str]], messages: list[str]) -> None:
    assert said(tmp_path, changed(*changes)) == messages


@pytest.mark.parametrize(
    ("engine", "prefill", "decode", "message"),
    [
        ("", "dtype: half", "", "11:53: roles.prefill.args.dtype: prefill has dtype 'half', decode 'auto'"),
        ("", "", "dtype: half", "12:59: roles.decode.args.dtype: prefill has dtype 'auto', decode 'half'"),
        ("dtype: half", "", "dtype: half", None),
        ("", "dtype: auto", "", None),
        (
            "kv-cache-dtype: fp8",
            "",
            "kv_cache_dtype: auto",
            "12:59: roles.decode.args.kv_cache_dtype: prefill has kv-cache-dtype 'fp8', decode 'auto'",
        ),
        (
            "",
            "attention-backend: FLASHINFER",
            "",
            "11:53: roles.prefill.args.attention-backend: prefill has attention-backend 'FLASHINFER', decode unset",
        ),
        ("attention-backend: FLASHINFER", "", "attention-backend: flashinfer", None),
        ("", "attention-backend: FLASHINFER", "attention-config: {backend: flashinfer}", None),
        ("", "attention-config: {flash_attn_version: 3}", "", None),
        (
            "",
            "",
            "attention-config: {backend: FLASH_ATTN}",
            "12:78: roles.decode.args.attention-config.backend: "
            "prefill has attention-backend unset, decode 'FLASH_ATTN'",
        ),
    ],
)
def test_the_handshake(tmp_path: Path, engine: str, prefill: str, decode: str, message: str | None) -> None:
    text = changed(
        ("max-model-len: 4096", "max-model-len: 4096" + (f", {engine}" if engine else "")),
        ("{max-num-seqs: 8}", f"{{{prefill}}}"),
        ("{max-num-seqs: 16}", f"{{{decode}}}"),
    )
    found = [item for item in said(tmp_path, text) if "handshake" in item]
    key = message.split(" has ")[1].split()[0] if message else ""
    assert found == (
        [f"r.yaml:{message}: NIXL refuses the handshake\n  hint: write {key} once, in engine.args"] if message else []
    )
    unchecked = text.replace("nixl}", "nixl, extra: {enforce_handshake_compat: false}}")
    assert not [item for item in said(tmp_path, unchecked) if "handshake" in item]


@pytest.mark.parametrize(
    ("prefill", "decode", "fits"), [(32, 32, True), (32, 64, True), (64, 32, False), (48, 64, False)]
)
def test_a_decode_block_holds_whole_prefill_blocks(tmp_path: Path, prefill: int, decode: int, fits: bool) -> None:
    text = changed(
        ("{max-num-seqs: 8}", f"{{block-size: {prefill}}}"), ("{max-num-seqs: 16}", f"{{block-size: {decode}}}")
    )
    message = (
        f"r.yaml:12:59: roles.decode.args.block-size: block-size {decode} of decode is no multiple of "
        f"block-size {prefill} of prefill: NIXL hands whole blocks over\n  hint: write block-size once, in engine.args"
    )
    assert [item for item in said(tmp_path, text) if "whole blocks" in item] == ([] if fits else [message])


@pytest.mark.parametrize(
    ("router", "instances", "parallel", "message"),
    [
        ("{kind: none}", 1, "tp: 2", None),
        ("{policy: power_of_two}", 1, "tp: 2", None),
        ("{policy: power_of_two}", 2, "tp: 2", None),
        ("{kind: none}", 2, "tp: 2", "router.kind: 2 instances need a router"),
        ("{kind: none}", 1, "dp: 16, dp_lb: hybrid", "router.kind: one API server a node need a router"),
    ],
)
def test_the_router_of_one_role(
    tmp_path: Path, router: str, instances: int, parallel: str, message: str | None
) -> None:
    text = serve(parallel, instances).replace("{policy: round_robin}", router)
    found = [item.split("\n")[0] for item in said(tmp_path, text)]
    assert found == ([f"r.yaml:12:16: {message}"] if message else [])


BENCHMARKS = [
    (
        ("concurrency: [1, 8], ", ""),
        "r.yaml:16:5: benchmarks.0.concurrency: missing: concurrency or request_rate\n"
        "  hint: or search, for the load that slo allows",
    ),
    (
        ("concurrency: [1, 8]", "concurrency: [1, 8], request_rate: [2]"),
        "r.yaml:16:64: benchmarks.0.request_rate: either concurrency or request_rate, not both",
    ),
    (
        ("concurrency: [1, 8]", "request_rate: [0.5]"),
        "r.yaml:16:64: benchmarks.0.requests_per_concurrency: there is no concurrency to multiply\n"
        "  hint: requests: NUMBER",
    ),
    (
        ("concurrency: [1, 8]", "concurrency: [1, 8], max_concurrency: 8"),
        "r.yaml:16:64: benchmarks.0.max_concurrency: each number of concurrency is a limit already\n"
        "  hint: leave it out",
    ),
    (
        (", requests_per_concurrency: 10", ""),
        "r.yaml:16:5: benchmarks.0.requests: missing: requests or requests_per_concurrency",
    ),
    (
        ("requests_per_concurrency: 10", "requests_per_concurrency: 10, requests: 80"),
        "r.yaml:16:64: benchmarks.0.requests_per_concurrency: either requests or requests_per_concurrency, not both",
    ),
    (
        ("requests_per_concurrency: 10", "requests: 10, warmup: 1, warmup_per_concurrency: 1"),
        "r.yaml:16:89: benchmarks.0.warmup_per_concurrency: either warmup or warmup_per_concurrency, not both",
    ),
    (
        ("requests_per_concurrency: 10", "requests: 4"),
        "r.yaml:16:74: warning: benchmarks.0.requests: 4 requests never reach concurrency 8\n"
        "  hint: requests_per_concurrency: 10 keeps all points alike",
    ),
    (
        ("isl: 1024", "isl: 4000"),
        "r.yaml:16:27: benchmarks.0.isl: isl 4000 + 128 tokens of output do not fit into max-model-len 4096 of decode\n"
        "  hint: max-model-len: 4128 or more, or shorter prompts",
    ),
    (
        ("max-num-seqs: 8}", "max-model-len: 1k}"),
        "r.yaml:16:27: benchmarks.0.isl: isl 1024 + 1 tokens of output do not fit into max-model-len 1000 of prefill\n"
        "  hint: max-model-len: 1025 or more, or shorter prompts",
    ),
    (
        ("timeout: 30m", "name: aiperf-1024x128"),
        "r.yaml:17:59: benchmarks.1.name: aiperf-1024x128 is also the name of benchmarks.0\n"
        "  hint: give each a name of its own",
    ),
    (
        ("  - {client: command,", "  - {client: command, command: [x]}\n  - {client: command,"),
        "r.yaml:18:5: benchmarks.2.name: command is also the name of benchmarks.1\n  hint: give each a name of its own",
    ),
    (
        ("timeout: 30m", "name: aiperf-1024x128-c8"),
        "r.yaml:17:59: benchmarks.1.name: aiperf-1024x128-c8 is also the name of a point of benchmarks.0\n"
        "  hint: give each a name of its own",
    ),
    (
        ("[my-bench, --quick]", '[""]'),
        "r.yaml:17:33: benchmarks.1.command.0: is empty: the first item is the program",
    ),
    (
        ("[my-bench, --quick]", "[my-bench, --url, '{url}/v1']"),
        "r.yaml:17:50: warning: benchmarks.1.command.2: {url} is passed on as it stands\n"
        "  hint: no shell reads the command; RECIPE_URL, RECIPE_MODEL and RECIPE_ARTIFACTS are in its environment",
    ),
    (
        ("[my-bench, --quick]", "[my-bench, $URL]"),
        "r.yaml:17:43: warning: benchmarks.1.command.1: $URL is passed on as it stands\n"
        "  hint: no shell reads the command; RECIPE_URL, RECIPE_MODEL and RECIPE_ARTIFACTS are in its environment",
    ),
    (
        ("requests_per_concurrency: 10", 'requests_per_concurrency: 10, env: {HF_HUB_OFFLINE: "1"}'),
        "r.yaml:16:116: benchmarks.0.env.HF_HUB_OFFLINE: with it AIPerf looks for a tokenizer that is a folder in the "
        "hub's cache, and stops\n  hint: leave it out: clients run without it",
    ),
    (
        ("client: aiperf, isl: 1024, osl: 128, concurrency: [1, 8]", "client: vllm-bench, isl: 1024, osl: 128"),
        "r.yaml:16:5: benchmarks.0.concurrency: missing: concurrency or request_rate\n"
        "  hint: or search, for the load that slo allows",
    ),
    (
        ("client: aiperf, isl: 1024,", "client: aiperf, isl_min: 512, isl: 1024,"),
        "r.yaml:16:22: benchmarks.0.isl_min: AIPerf draws no uniform lengths\n"
        "  hint: client: vllm-bench, or leave it out: all are then as long",
    ),
    (
        ("client: aiperf, isl: 1024, osl: 128", "client: vllm-bench, isl: 1024, osl: 128, osl_min: 129"),
        "r.yaml:16:56: benchmarks.0.osl_min: 129 is more than osl 128, the longest",
    ),
    (
        ("client: aiperf, isl: 1024,", "client: vllm-bench, isl: 4000,"),
        "r.yaml:16:31: benchmarks.0.isl: isl 4000 + 128 tokens of output do not fit into max-model-len 4096 of decode\n"
        "  hint: max-model-len: 4128 or more, or shorter prompts",
    ),
]


@pytest.mark.parametrize(("change", "message"), BENCHMARKS)
def test_benchmarks(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert said(tmp_path, changed(change), warnings=True) == [message]


def test_the_offline_hub_is_fine_for_vllm_bench(tmp_path: Path) -> None:
    client = ("client: aiperf", "client: vllm-bench")
    offline = ("requests_per_concurrency: 10", 'requests_per_concurrency: 10, env: {HF_HUB_OFFLINE: "1"}')
    assert said(tmp_path, changed(client, offline), warnings=True) == []


@pytest.mark.parametrize(
    "command",
    [
        "[sh, -c, 'bench --url $URL']",
        "[curl, -w, '%{http_code}']",
        "[x, '{\"a\": 1}']",
        "[x, '{{jinja}}']",
        "['x{', '}']",
    ],
)
def test_commands_that_are_left_alone(tmp_path: Path, command: str) -> None:
    assert said(tmp_path, changed(("[my-bench, --quick]", command)), warnings=True) == []


@pytest.mark.parametrize("value", ["auto", -1, '"-1"', "4.2k"])
def test_a_context_that_is_long_enough(tmp_path: Path, value: str) -> None:
    found = said(tmp_path, changed(("max-model-len: 4096", f"max-model-len: {value}"), ("isl: 1024", "isl: 4000")))
    assert not [item for item in found if "do not fit" in item]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (8192, 8192),
        ("8192", 8192),
        ("8k", 8000),
        ("8K", 8192),
        ("1.5k", 1500),
        ("1M", 1 << 20),
        ("auto", None),
        (True, None),
    ],
)
def test_lengths_as_vllm_reads_them(value: object, number: int | None) -> None:
    assert human_integer(value) == number


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/models/a", None),
        ("alias", None),
        ("hf:org/repo", None),
        ("hf:org/repo@abc123", None),
        ("meta-llama/Llama-3.1-8B", "'meta-llama/Llama-3.1-8B' is a relative path"),
        ("./a", "'./a' is a relative path"),
        ("~/a", "'~/a' is a relative path"),
        ("hf:repo", "'hf:repo' is not of the form hf:ORG/REPO[@REVISION]"),
        ("hf:a/b/c", "'hf:a/b/c' is not of the form hf:ORG/REPO[@REVISION]"),
    ],
)
def test_model_paths(tmp_path: Path, path: str, message: str | None) -> None:
    found = [item.split("\n")[0] for item in said(tmp_path, changed(("path: /models/llama", f"path: '{path}'")))]
    assert found == ([f"r.yaml:3:15: model.path: {message}"] if message else [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CUDA_VISIBLE_DEVICES", "cannot be set: the plan gives each process its own devices"),
        ("VLLM_HOST_IP", "cannot be set: each process is given its own node's address"),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", "cannot be set: ports are reserved on each node when the run begins"),
        ("VLLM_DP_SIZE", "cannot be set: the plan places the ranks; sizes stand in roles.ROLE.parallel"),
        ("SLURM_NTASKS", "cannot be set: Slurm sets it"),
        ("NCCL_SOCKET_IFNAME", "cannot be set: it names a network interface of one site"),
        ("HF_TOKEN", "looks like a secret, and files are copied into every run folder"),
        ("NCCL_DEBUG", None),
        ("VLLM_MAX_TOKENS", None),
    ],
)
def test_variables(tmp_path: Path, name: str, message: str | None) -> None:
    for place, text in {
        "engine.env": changed(('OMP_NUM_THREADS: "1"', f"{name}: x-value")),
        "roles.decode.env": changed(("max-num-seqs: 16}", f"max-num-seqs: 16}}, env: {{{name}: x-value}}")),
        "router.env": changed(("{policy: round_robin}", f"{{env: {{{name}: x-value}}}}")),
        "benchmarks.1.env": changed(("timeout: 30m", f"env: {{{name}: x-value}}")),
    }.items():
        found = problems(tmp_path, text)
        assert [(item.field, item.message) for item in found] == ([(f"{place}.{name}", message)] if message else [])


def test_the_value_of_a_secret_is_never_repeated(tmp_path: Path) -> None:
    secret = "hf_" + "Ab1" * 10
    text = changed(
        ('OMP_NUM_THREADS: "1"', f"MY_VAR: {secret}"),
        ("round_robin", f"random, args: {{x: {secret}}}"),
        ("max-num-seqs: 16", f"max-num-seqs: {secret}"),
    )
    found = said(tmp_path, text)
    assert len(found) == 3
    assert all("looks like a secret" in item and secret not in item for item in found)
    assert "`secrets: [MY_VAR]` in the cluster profile" in found[0]


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "anything", True),
        ("HF_TOKEN", "", False),
        ("api-key", "abcd", True),
        ("OPENAI_API_KEY", "EMPTY", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("X", "sk-" + "a" * 30, True),
        ("X", "ghp_" + "a" * 36, True),
        ("X", "AKIA" + "A" * 16, True),
        ("X", "mlx5_0:1,mlx5_1:1", False),
        ("DB_PASSWORD", "hunter2", True),
        ("max-num-batched-tokens", 8192, False),
    ],
)
def test_what_looks_like_a_secret(name: str, value: object, secret: bool) -> None:
    assert looks_secret(name, value) is secret


def test_what_the_schema_has_refused_is_not_judged_again(tmp_path: Path) -> None:
    # tp is a stand-in here, and nothing may be said about how it fits.
    assert [item.field for item in problems(tmp_path, changed(("tp: 4, dp: 2", "tp: x, dp: 3")))] == [
        "roles.decode.parallel.tp"
    ]
    assert [item.field for item in problems(tmp_path, changed(("  decode:", "  decod:")))] == ["roles.decod"]
    assert [item.field for item in problems(tmp_path, changed(("isl: 1024", "isl: x"), ("[1, 8]", "[]")))] == [
        "benchmarks.0.isl",
        "benchmarks.0.concurrency",
    ]


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("max-num-sequences: 16", "max-num-sequences: vLLM 0.32.0 has no flag --max-num-sequences"),
        ("tensor-parallel-size: 4", "tensor-parallel-size: parallel sizes have one place"),
        ("port: 8000", "port: cannot be set: ports are reserved on each node when the run begins"),
        ("served-model-name: x", "served-model-name: cannot be set: it stands in model.served_name"),
        (
            "headless: true",
            "headless: cannot be set: the plan places ranks on nodes; sizes stand in roles.ROLE.parallel",
        ),
        ("kv-transfer-config: {}", "kv-transfer-config: cannot be set: it follows from kv_transfer and the role"),
        ("api-key: abcdefgh", "api-key: cannot be set: a flag stands in plain sight of every user of a node"),
        ("max-num-seqs: many", "max-num-seqs: needs an integer, and is the string 'many'"),
        ("kv-cache-dtype: fp9", "kv-cache-dtype: 'fp9' is none of vLLM 0.32.0's values"),
        ("enforce-eager: yes", "enforce-eager: takes no value, and is the string 'yes'"),
    ],
)
def test_flags_are_checked_against_the_version(tmp_path: Path, flag: str, problem: str) -> None:
    found = [item for item in said(tmp_path, changed(("max-num-seqs: 16", flag))) if "handshake" not in item]
    assert [item.split("\n")[0] for item in found] == [f"r.yaml:12:59: roles.decode.args.{problem}"]


def test_a_version_without_a_list_is_warned_of(tmp_path: Path) -> None:
    assert (
        said(tmp_path, changed(("0.32.0", "99.0")), warnings=True)[0]
        .split("\n")[0]
        .startswith("r.yaml:6:12: warning: engine.version: 99.0 is newer than every list: flags are checked against ")
    )


def test_the_check_is_pure(tmp_path: Path) -> None:
    from recipe_toolkit.recipe_loader import load_recipe

    (tmp_path / "r.yaml").write_text(GOOD, encoding="utf-8")
    recipe = load_recipe(tmp_path / "r.yaml").recipe
    assert check_recipe(recipe) == check_recipe(recipe) == []
