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
        ("max-num-seq", 4, "vLLM 0.32.0 has no flag --max-num-seq", "did you mean `max-num-seqs`?"),
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
        ("compilation-config", {"cudagraph_mode": "FULLY"}, "cudagraph_mode 'FULLY' is none of", "`FULL`"),
        ("speculative-config", {"method": "eagle9"}, "method 'eagle9' is none of", "eagle"),
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
    assert not problem.warning
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
    assert problem.warning
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


def test_unknown_version_is_checked_against_the_nearest():
    assert vllm_args.unknown_version(VERSION) is None
    newer, older = vllm_args.unknown_version("99.1.0"), vllm_args.unknown_version("0.1.0")
    assert newer.warning
    assert vllm_args.versions()[-1] in newer.message
    assert vllm_args.versions()[0] in older.message
    (problem,) = check({"max-num-seq": 4}, "99.1.0", "engine.args")
    assert "did you mean" in problem.hint


def test_what_another_versions_list_lacks_may_be_right():
    args = {"a-flag-of-a-fork": 4, "kv-cache-dtype": "fp3", "compilation-config": {"cudagraph_mode": "MAYBE"}}
    for version, warning in ((VERSION, False), (f"{VERSION}+fork", True), ("99.1.0", True)):
        problems = check(args, version, "engine.args")
        assert [problem.key for problem in problems] == list(args)
        assert {problem.warning for problem in problems} == {warning}
    # What could not be right in any version is an error in all of them.
    (problem,) = check({"port": 8000}, "99.1.0", "engine.args")
    assert not problem.warning


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


def test_list_is_small_and_whole():
    (path,) = [path for path in vllm_args.FOLDER.glob("*.json") if path.stem == VERSION]
    assert path.stat().st_size < 60_000
    data = json.loads(path.read_text(encoding="utf-8"))
    assert len(data["options"]) > 300
    assert data["vllm"] == VERSION
    assert all(len(values) > 4 for values in data["values"].values())


@pytest.mark.parametrize(("value", "hint"), [(1.5, None), ("16", "without quotes"), ("1.5", None), (True, None)])
def test_no_hint_that_would_be_refused_again(value, hint):
    (problem,) = vllm_args.check({"block-size": value}, "0.32.0", "engine.args")
    assert (problem.key, problem.hint) == ("block-size", hint)
