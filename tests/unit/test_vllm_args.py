"""Flags against vLLM's own list, a row a mistake; and YAML values as words."""

from __future__ import annotations

import json

import pytest

from recipe_toolkit import vllm_args
from recipe_toolkit.vllm_args import check, render

VERSION = "0.32.0"


@pytest.mark.parametrize(
    ("key", "value", "message", "hint"),
    [
        ("max-num-sqes", 4, "vLLM 0.32.0 has no flag --max-num-sqes", "did you mean `max-num-seqs`?"),
        ("kv-cache-memory", 4, "--kv-cache-memory, and reads it as kv-cache-memory-bytes", "`kv-cache-memory-bytes`"),
        ("zzzzz", 4, "vLLM 0.32.0 has no flag --zzzzz", None),
        ("max_num_seqs", 4, "is not spelt as vLLM's help spells it", "write `max-num-seqs`"),
        ("--max-num-seqs", 4, "is not spelt as vLLM's help spells it", "write `max-num-seqs`"),
        ("q", "fp8", "is a short form", "write `quantization`"),
        (
            "no-enable-prefix-caching",
            True,
            "is the negative of enable-prefix-caching",
            "`enable-prefix-caching: false`",
        ),
        ("max-num-seqs", "4", "needs an integer, and is the string '4'", "without quotes"),
        ("max-num-seqs", 4.5, "needs an integer, and is 4.5", None),
        ("max-num-seqs", True, "needs an integer, and is true", None),
        ("max-num-seqs", [4], "needs an integer, and is a list", None),
        ("gpu-memory-utilization", "high", "needs a number, and is the string 'high'", None),
        ("max-num-batched-tokens", "8kb", "needs an integer, or one such as 8k (8000) or 8K (8192)", None),
        ("max-model-len", "automatic", "needs an integer, or one such as 8k", None),
        ("tokenizer-mode", 3, "needs a string, and is 3", 'tokenizer-mode: "3"'),
        ("dtype", "bf16", "'bf16' is none of vLLM 0.32.0's values", "did you mean `bfloat16`?"),
        ("kv-cache-dtype", "fp9", "'fp9' is none of vLLM 0.32.0's values", "did you mean `fp8`?"),
        ("attention-backend", "FLASH", "'FLASH' is none of", "did you mean"),
        ("all2all-backend", "warp", "'warp' is none of", "one of allgather_reducescatter"),
        ("max-lora-rank", 24, "'24' is none of", None),
        ("compilation-config", {"cudagraph_mode": "FULLY"}, "'FULLY' is none of", "`FULL`"),
        ("speculative-config", {"method": "eagle9"}, "'eagle9' is none of", "eagle"),
        ("compilation-config", True, "needs a mapping, and is true", None),
        ("compilation-config", "{cudagraph", "is no JSON", "write a mapping in YAML"),
        (
            "compilation-config.cudagraph_mode",
            "FULL",
            "is written with a dot",
            "compilation-config: {cudagraph_mode: …}",
        ),
        ("disable-log-stats", False, "has no negative form", "leave it out"),
        ("disable-log-stats", 1, "takes no value, and is 1", "disable-log-stats: true"),
        ("enforce-eager", "yes", "takes no value, and is the string 'yes'", "enforce-eager: true"),
        ("cudagraph-capture-sizes", [1, "2"], "needs an integer, and is the string '2'", None),
        ("cudagraph-capture-sizes", [], "is empty", None),
        ("max-num-seqs", -5, "-5 is less than 1", None),
        ("max-model-len", -7, "-7 is less than -1", None),
        ("max-model-len", "-8k", "-8k is less than -1", None),
        ("gpu-memory-utilization", 17, "17 is more than 1", None),
        ("gpu-memory-utilization", 0, "0 is not more than 0", None),
        ("watermark", 1.0, "1.0 is not less than 1.0", None),
    ],
)
def test_mistake(key, value, message, hint):
    (problem,) = check({key: value}, VERSION, "engine.args")
    assert problem.key == key
    assert message in problem.message
    assert problem.severity == "error"
    if hint is not None:
        assert hint in problem.hint


@pytest.mark.parametrize("name", [*vllm_args.RESERVED, "data_parallel_rank", "dpl", "n"])
def test_flag_that_the_toolkit_sets(name):
    (problem,) = check({name: "x"}, VERSION, "roles.decode.args")
    assert problem.message.startswith("cannot be set: ")
    assert len(problem.message) > len("cannot be set: ") + 10, "with a reason"


def test_every_reserved_and_parallel_flag_exists():
    assert [name for name in (*vllm_args.RESERVED, *vllm_args.PARALLEL) if not vllm_args.knows(name, VERSION)] == []


@pytest.mark.parametrize(
    ("name", "where", "place"),
    [
        ("tensor-parallel-size", "roles.decode.args", "roles.decode.parallel.tp"),
        ("tp", "engine.args", "roles.ROLE.parallel.tp"),
        ("enable_expert_parallel", "roles.prefill.args", "roles.prefill.parallel.ep"),
        ("no-enable-expert-parallel", "roles.prefill.args", "roles.prefill.parallel.ep"),
        ("data-parallel-hybrid-lb", "roles.serve.args", "roles.serve.parallel.dp_lb"),
    ],
)
def test_parallel_size(name, where, place):
    (problem,) = check({name: 2}, VERSION, where)
    assert problem.hint == f"say it in {place}"


def test_parser_of_a_plugin_may_have_any_name():
    (problem,) = check({"tool-call-parser": "mine"}, VERSION, "engine.args")
    assert problem.severity == "warning"
    assert "tool-parser-plugin" in problem.hint
    assert check({"tool-call-parser": "mine", "tool-parser-plugin": "/p.py"}, VERSION, "engine.args") == []
    assert check({"tool-call-parser": "hermes"}, VERSION, "engine.args") == []


def test_two_spellings_of_one_flag():
    problems = check({"gpu-memory-utilization": 0.9, "device-memory-utilization": 0.8}, VERSION, "engine.args")
    assert [(p.key, p.message) for p in problems] == [
        ("device-memory-utilization", "is the same flag as gpu-memory-utilization")
    ]


def test_what_is_right_is_let_through():
    args = {
        "max-model-len": "auto",
        "max-num-batched-tokens": "8k",
        "kv-cache-memory-bytes": "1.5G",
        "kv-cache-dtype": "fp8",
        "attention-backend": "FLASH_ATTN",
        "moe-backend": "deep-gemm",
        "enable-prefix-caching": False,
        "trust-remote-code": True,
        "gpu-memory-utilization": 1,
        "max-lora-rank": 16,
        "hf-overrides": {"a": {"b": [1]}},
        "allowed-origins": ["*"],
        "lora-modules": ["a=/a", {"name": "b", "path": "/b"}],
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 3},
        "cudagraph-capture-sizes": [1, 2],
        "logits-processors": "one.processor",
        "seed": -1,
    }
    assert check(args, VERSION, "engine.args") == []


@pytest.mark.parametrize(
    ("version", "used", "later", "sure", "severity", "message"),
    [
        ("0.26.1", "0.26.0", None, True, "note", "is of the same series as 0.26.0: its flags are those of 0.26.0"),
        ("0.27", "0.27.1", None, True, "note", "is of the same series as 0.27.1"),
        ("0.26.0+cu130", "0.26.0", None, False, "note", "is a build of 0.26.0: its flags are those of 0.26.0"),
        ("0.26.1.dev12+gabc", "0.26.0", "0.27.1", False, "warning", "was built between 0.26.0 and 0.27.1: flags"),
        ("0.26.1rc1.dev1177+ga9a17e709", "0.26.0", "0.27.1", False, "warning", "was built between 0.26.0 and 0.27.1"),
        ("0.27.0rc2", "0.26.0", "0.27.1", False, "warning", "was built between 0.26.0 and 0.27.1"),
        ("nightly", "0.33.0", None, False, "warning", "names no release, so it is taken for the newest: flags are"),
        ("0.1.dev17492+g454b47db8", "0.33.0", None, False, "warning", "names no release, so it is taken for"),
        ("99.1.0", "0.33.0", None, False, "warning", "is newer than every list: flags are checked against 0.33.0"),
        ("0.33.1.dev3", "0.33.0", None, False, "warning", "is newer than every list"),
        ("0.1.0", "0.20.2", None, False, "warning", "is older than every list: flags are checked against 0.20.2"),
        ("0.20.0rc1", "0.20.2", None, False, "warning", "is older than every list"),
    ],
)
def test_list_that_stands_for_a_version(version, used, later, sure, severity, message):
    found = vllm_args.match(version)
    assert (found.used, found.later, found.sure) == (used, later, sure)
    said = vllm_args.unknown_version(version)
    assert (said.severity, said.path) == (severity, ())
    assert said.message.startswith(f"{version} {message}")


def test_every_list_stands_for_itself():
    versions = vllm_args.versions()
    assert versions[0] == "0.20.2"
    assert "0.26.0" in versions
    for version in versions:
        assert vllm_args.match(version).used == version
        assert vllm_args.unknown_version(version) is None


def test_build_between_two_releases_takes_what_either_takes():
    dev = "0.26.1.dev12+gabc"
    # video-pruning-method comes with 0.27.1, max-num-partial-prefills goes with it.
    args = {"video-pruning-method": "x", "max-num-partial-prefills": 1, "moe-backend": "batched_triton"}
    assert [problem.key for problem in check(args, dev, "engine.args")] == ["video-pruning-method"]
    assert [problem.key for problem in check(args, "0.26.0", "engine.args")] == ["video-pruning-method", "moe-backend"]
    assert [problem.key for problem in check(args, "0.27.1", "engine.args")] == [
        "video-pruning-method",
        "max-num-partial-prefills",
    ]


@pytest.mark.parametrize(
    ("args", "version", "message", "hint"),
    [
        ({"watermark": 0.1}, "0.23.0", "vLLM 0.23.0 has no flag --watermark; 0.24.0 is the first to have it", None),
        (
            {"calculate-kv-scales": True},
            "0.28.0",
            "no flag --calculate-kv-scales; 0.27.1 was the last to have it",
            None,
        ),
        ({"swap-space": 4}, "0.26.0", "no flag --swap-space; 0.17 was the last to have it", "leave it out"),
        ({"disable-log-requests": True}, "0.26.0", "; 0.33.0 is the first to have it", "enable-log-requests"),
        ({"guided-decoding-backend": "x"}, "0.26.0", "; 0.11 was the last", "structured-outputs-config: {backend: …}"),
        (
            {"kv-cache-dtype": "nvfp4_4over6"},
            "0.26.0",
            "'nvfp4_4over6' is none of vLLM 0.26.0's values; 0.28.0 is",
            None,
        ),
        (
            {"quantization": "bitsandbytes"},
            "0.28.0",
            "'bitsandbytes' is none of vLLM 0.28.0's values; 0.27.1 was",
            None,
        ),
        ({"all2all-backend": "mori"}, "0.23.0", "'mori' is none of vLLM 0.23.0's values; 0.22.1 was the last", None),
        (
            {"attention-config": {"use_cudnn_prefill": True}},
            "0.26.0",
            "vLLM 0.26.0 knows no key use_cudnn_prefill in attention-config; 0.2",
            None,
        ),
        (
            {"speculative-config": {"method": "medusa", "num_speculative_tokens": 1}},
            "0.33.0",
            "'medusa' is none of vLLM 0.33.0's values; 0.32.0 was the last to have it",
            None,
        ),
    ],
)
def test_where_it_went(args, version, message, hint):
    (problem,) = check(args, version, "engine.args")
    assert message in problem.message
    assert problem.severity == "error"
    assert (hint in problem.hint) if hint else problem.hint is None


@pytest.mark.parametrize(
    ("flag", "document", "path", "message", "hint"),
    [
        (
            "compilation-config",
            {"cudagraf_mode": "FULL"},
            "cudagraf_mode",
            "knows no key cudagraf_mode",
            "cudagraph_mode",
        ),
        ("compilation-config", {"cudagraph_mode": "FUL"}, "cudagraph_mode", "'FUL' is none of", "`FULL`"),
        ("compilation-config", {"mode": 7}, "mode", "'7' is none of vLLM 0.26.0's values", "one of NONE"),
        ("compilation-config", {"mode": [3]}, "mode", "needs one of NONE, STOCK_TORCH_COMPILE", None),
        (
            "compilation-config",
            {"pass_config": {"fuse_norm_quant": "yes"}},
            "pass_config.fuse_norm_quant",
            "needs true or false, and is the string 'yes'",
            None,
        ),
        ("compilation-config", {"pass_config": {"x": 1}}, "pass_config.x", "knows no key x in pass_config", None),
        (
            "compilation-config",
            {"cudagraph_capture_sizes": [8, "16"]},
            "cudagraph_capture_sizes.1",
            "an integer",
            "quotes",
        ),
        (
            "compilation-config",
            {"max_cudagraph_capture_size": "80"},
            "max_cudagraph_capture_size",
            "an integer",
            "quotes",
        ),
        ("compilation-config", {"max_cudagraph_capture_size": 80.5}, "max_cudagraph_capture_size", "an integer", None),
        (
            "compilation-config",
            {"use_inductor_graph_partition": 1},
            "use_inductor_graph_partition",
            "true or false",
            None,
        ),
        ("compilation-config", '{"cudagraph_mode": "FUL"}', "cudagraph_mode", "'FUL' is none of", "`FULL`"),
        ("speculative-config", {"num_speculative_token": 3}, "num_speculative_token", "knows no key", "_tokens`?"),
        (
            "speculative-config",
            {"num-speculative-tokens": "three"},
            "num-speculative-tokens",
            "an integer, and is the string",
            None,
        ),
        (
            "speculative-config",
            {"num_speculative_tokens": None},
            "num_speculative_tokens",
            "an integer, and is null",
            None,
        ),
        ("speculative-config", {"method": "eagle9"}, "method", "'eagle9' is none of", "eagle"),
        ("speculative-config", {"rejection_sample_method": "strikt"}, "rejection_sample_method", "is none of", None),
        ("eplb-config", {"window_size": "wide"}, "window_size", "needs an integer, and is the string 'wide'", None),
        ("eplb-config", {"policy": "other"}, "policy", "'other' is none of vLLM 0.26.0's values", "one of default"),
        ("attention-config", {"backend": "FLASHIFNER"}, "backend", "'FLASHIFNER' is none of", "`FLASHINFER`"),
        ("attention-config", {"flash_attn_version": 5}, "flash_attn_version", "'5' is none of", "one of 2, 3, 4"),
        ("kernel-config", {"moe_backend": "cutlas"}, "moe_backend", "'cutlas' is none of", "`cutlass`"),
        ("structured-outputs-config", {"backend": "xgrammer"}, "backend", "'xgrammer' is none of", "`xgrammar`"),
        ("kv-events-config", {"endpoint": 5}, "endpoint", "needs a string, and is 5", None),
    ],
)
def test_document(flag, document, path, message, hint):
    (problem,) = check({flag: document}, "0.26.0", "engine.args")
    assert ".".join(map(str, problem.path)) == f"{flag}.{path}"
    assert message in problem.message
    assert (hint in problem.hint) if hint else True


def test_vllm_takes_the_keys_of_speculative_config_with_dashes():
    (problem,) = check({"speculative-config": {"num-speculative-tokens": 3}}, "0.26.0", "engine.args")
    assert (problem.severity, problem.path) == ("note", ("speculative-config", "num-speculative-tokens"))
    twice = {"num-speculative-tokens": 3, "num_speculative_tokens": 3}
    (problem,) = check({"speculative-config": twice}, "0.26.0", "engine.args")
    assert (problem.severity, problem.message) == ("error", "is the same key as num_speculative_tokens")
    # Of other documents it takes none.
    (problem,) = check({"compilation-config": {"cudagraph-mode": "FULL"}}, "0.26.0", "engine.args")
    assert "knows no key cudagraph-mode" in problem.message


def test_documents_that_are_right():
    args = {
        "compilation-config": {
            "cudagraph_mode": "full_decode_only",
            "mode": 3,
            "pass_config": {"fuse_norm_quant": None, "fuse_attn_quant": True},
            "cudagraph_capture_sizes": [1, 2],
            "inductor_compile_config": {"anything": {"goes": 1}},
            "custom_ops": ["+rms_norm"],
        },
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 3, "moe_backend": "deep-gemm", "model": None},
        "eplb-config": {"window_size": 1000, "use_async": True, "num_redundant_experts": 32},
        "attention-config": {"backend": "flash_attn", "use_trtllm_attention": True, "flash_attn_version": 3},
        "kernel-config": {"moe_backend": "auto", "ir_op_priority": {"rms_norm": "native,vllm_c"}},
        "structured-outputs-config": {"backend": "xgrammar"},
        "kv-events-config": {"publisher": "zmq", "hwm": 100_000},
        "hf-overrides": {"any": {"key": 1}},
    }
    assert check(args, "0.26.0", "engine.args") == []


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("no-disable-log-stats", "does not exist: disable-log-stats is a flag that is only ever added"),
        ("no-max-num-seqs", "does not exist: max-num-seqs is a flag with a value"),
    ],
)
def test_negative_form_that_does_not_exist(flag, message):
    (problem,) = check({flag: True}, VERSION, "engine.args")
    assert problem.message == message


def test_what_another_versions_list_lacks_may_be_right():
    args = {"a-flag-of-a-fork": 4, "kv-cache-dtype": "fp3", "compilation-config": {"cudagraph_mode": "MAYBE"}}
    for version, severity in ((VERSION, "error"), (f"{VERSION}+fork", "warning"), ("99.1.0", "warning")):
        problems = check(args, version, "engine.args")
        assert [problem.key for problem in problems] == list(args)
        assert {problem.severity for problem in problems} == {severity}
    # What could not be right in any version is an error in all of them.
    (problem,) = check({"port": 8000}, "99.1.0", "engine.args")
    assert problem.severity == "error"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ({"disable-sliding-window": False}, ["--no-disable-sliding-window"]),
        ({"max-num-seqs": 16, "max-model-len": 8192}, ["--max-num-seqs", "16", "--max-model-len", "8192"]),
        ({"max-model-len": 8192, "max-num-seqs": 16}, ["--max-model-len", "8192", "--max-num-seqs", "16"]),
        ({"watermark": 1e-05}, ["--watermark", "0.00001"]),
        ({"gpu-memory-utilization": 0.92}, ["--gpu-memory-utilization", "0.92"]),
        ({"kv-cache-memory-bytes": 10**20}, ["--kv-cache-memory-bytes", "100000000000000000000"]),
        ({"seed": -1}, ["--seed=-1"]),
        ({"cudagraph-capture-sizes": [1, 2, 4]}, ["--cudagraph-capture-sizes", "1", "2", "4"]),
        ({"allowed-origins": ["*", "x"]}, ["--allowed-origins", '["*","x"]']),
        ({"middleware": ["a.b", "c.d"]}, ["--middleware", "a.b", "--middleware", "c.d"]),
        ({"lora-modules": ["a=/a", {"name": "b"}]}, ["--lora-modules", "a=/a", '{"name":"b"}']),
        (
            {"compilation-config": {"pass_config": {"b": True, "a": None}, "level": 3}},
            ["--compilation-config", '{"pass_config":{"b":true,"a":null},"level":3}'],
        ),
        ({"chat_template": "é"}, ["--chat-template", "é"]),
        ({"hf-overrides": {"name": "é"}}, ["--hf-overrides", '{"name":"é"}']),
    ],
)
def test_render(args, words):
    assert render(args, VERSION) == words
    assert all(isinstance(word, str) for word in words)


@pytest.mark.parametrize("version", vllm_args.versions())
def test_list_is_small_and_whole(version):
    path = vllm_args.FOLDER / f"{version}.json"
    assert path.stat().st_size < 60_000
    data = json.loads(path.read_text(encoding="utf-8"))
    assert len(data["options"]) > 230
    assert data["vllm"] == version
    assert data["values"].keys() == {
        "attention-backend",
        "kv-cache-dtype",
        "kv-transfer-config.kv_connector",
        "load-format",
        "mm-encoder-attn-backend",
        "quantization",
        "reasoning-parser",
        "tool-call-parser",
    }
    assert all(len(values) > 4 for values in data["values"].values())
    named = {option["config"] for option in data["options"].values() if "config" in option}
    assert named <= data["configs"].keys()
    assert named >= {"KVTransferConfig", "SpeculativeConfig", "CompilationConfig", "EPLBConfig", "AttentionConfig"}
    assert all(len(keys) > 0 for keys in data["configs"].values())


@pytest.mark.parametrize(("value", "hint"), [(1.5, None), ("16", "without quotes"), ("1.5", None), (True, None)])
def test_no_hint_that_would_be_refused_again(value, hint):
    (problem,) = vllm_args.check({"block-size": value}, "0.32.0", "engine.args")
    assert (problem.key, problem.hint) == ("block-size", hint)
