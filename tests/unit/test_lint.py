"""Each rule finds what it is about and lets the rest pass; a recipe answers a rule by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_support import changed, problems
from recipe_toolkit.errors import Problem
from recipe_toolkit.feasibility.lint import RULES
from recipe_toolkit.plan.any_site import any_site
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.recipe_loader import load_recipe

ROOT = Path(__file__).parents[2]

# Eight prefill and eight decode GPUs; each decode rank has 64 / 2 = 32 requests.
GOOD = """\
schema: 1
name: linted
model: {path: "hf:org/model@0123abc", served_name: m}
engine: {kind: vllm, version: "0.26.0", image: "vllm/vllm-openai:v0.26.0", args: {max-model-len: 4096}}
resources: {gpu: H200, gpus_per_node: 8}
roles:
  prefill: {instances: 2, parallel: {tp: 4}, args: {}}
  decode:
    parallel: {tp: 4, dp: 2, ep: true}
    args:
      max-num-seqs: 32
      max-num-batched-tokens: 128
      speculative-config: {method: mtp, num_speculative_tokens: 3}
      max-cudagraph-capture-size: 128
kv_transfer: {connector: nixl}
benchmarks:
  - {client: aiperf, isl: 1024, osl: 128, concurrency: [16, 64], requests_per_concurrency: 10}
"""
SEQS, GRAPH, TOKENS = "max-num-seqs: 32", "max-cudagraph-capture-size: 128", "max-num-batched-tokens: 128"
CONFIG = "compilation-config: {max_cudagraph_capture_size: %s}"


def found(folder: Path, text: str) -> list[Problem]:
    return problems(folder, text, warnings=True, rules=True)


def test_nothing_is_said_of_a_recipe_that_is_meant(tmp_path):
    assert found(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("rule", "change", "field", "message", "hint"),
    [
        (
            "max-num-seqs-below-load",
            (SEQS, "max-num-seqs: 31"),
            "roles.decode.args.max-num-seqs",
            "31 is below the 32 requests that each rank of decode has at concurrency 64",
            "max-num-seqs: 32 or more",
        ),
        (
            "graph-below-load",
            (GRAPH, "max-cudagraph-capture-size: 124"),
            "roles.decode.args.max-cudagraph-capture-size",
            "124 is below the 32 x 4 tokens that a step of decode has at concurrency 64",
            "128 or more",
        ),
        (
            "graph-below-load",
            (GRAPH, CONFIG % 64),
            "roles.decode.args.compilation-config.max_cudagraph_capture_size",
            "64 is below the 32 x 4 tokens",
            "128 or more",
        ),
        (
            "graph-below-load",
            (GRAPH, "cudagraph-capture-sizes: [4, 8, 64]"),
            "roles.decode.args.cudagraph-capture-sizes",
            "64 is below the 32 x 4 tokens",
            "128 or more",
        ),
        (
            "graph-not-multiple",
            (GRAPH, "max-cudagraph-capture-size: 130"),
            "roles.decode.args.max-cudagraph-capture-size",
            "130 is no multiple of 4: each request brings its own token and 3 speculative ones",
            "132",
        ),
        (
            "batched-tokens-below-load",
            (TOKENS, "max-num-batched-tokens: 127"),
            "roles.decode.args.max-num-batched-tokens",
            "127 is below the 32 x 4 tokens that a step of decode has at concurrency 64",
            "128 or more",
        ),
        (
            "eager-decode",
            (GRAPH, "enforce-eager: true"),
            "roles.decode.args.enforce-eager",
            "decode runs without CUDA graphs",
            "leave it out",
        ),
        (
            "image-floats",
            ("vllm-openai:v0.26.0", "vllm-openai:nightly"),
            "engine.image",
            "the tag nightly is another build from one week to the next",
            "by its digest",
        ),
        ("image-floats", ("vllm-openai:v0.26.0", "vllm-openai"), "engine.image", "an image without a tag is", "digest"),
        ("image-floats", ("v0.26.0", "nightly-dev-arm64"), "engine.image", "the tag nightly-dev-arm64", "digest"),
        (
            "image-of-another-version",
            ("vllm-openai:v0.26.0", "vllm-openai:v0.27.1-cu130"),
            "engine.version",
            "the image is of vLLM 0.27, and flags are checked against 0.26.0",
            'version: "0.27.1"',
        ),
        ("model-without-revision", ("@0123abc", ""), "model.path", "names no revision", "hf:org/model@COMMIT"),
        (
            "speculation-differs-on-hybrid",
            (TOKENS, "max-num-batched-tokens: 128\n      mamba-ssm-cache-dtype: bfloat16"),
            "roles.decode.args.speculative-config",
            "prefill guesses 0 tokens ahead and decode 3, on a model with a state",
            "on both sides",
        ),
        (
            "state-differs-on-hybrid",
            (TOKENS, "max-num-batched-tokens: 128\n      mamba-ssm-cache-dtype: bfloat16"),
            "roles.decode.args.mamba-ssm-cache-dtype",
            "prefill has mamba-ssm-cache-dtype 'auto', decode 'bfloat16'",
            "once, in engine.args",
        ),
        (
            "state-differs-on-hybrid",
            (f"    args:\n      {SEQS}", f"    env: {{VLLM_SSM_CONV_STATE_LAYOUT: DS}}\n    args:\n      {SEQS}"),
            "roles.decode.env.VLLM_SSM_CONV_STATE_LAYOUT",
            "prefill has VLLM_SSM_CONV_STATE_LAYOUT unset, decode 'DS'",
            "once, in engine.env",
        ),
        (
            "stream-interval-hides-itl",
            (TOKENS, "max-num-batched-tokens: 128\n      stream-interval: 32"),
            "roles.decode.args.stream-interval",
            "32 tokens come at once: read TPOT, not ITL",
            None,
        ),
        (
            "percentile-of-few",
            (
                "client: aiperf",
                'client: vllm-bench, args: {metric-percentiles: "50,99"}',
            ),
            "benchmarks.0.requests_per_concurrency",
            "p99 of a point of 160 requests is one or two of them",
            "1000 requests or more",
        ),
        (
            "gpus-idle",
            ("instances: 2, parallel: {tp: 4}", "instances: 3, parallel: {tp: 4}"),
            "roles.prefill",
            "4 of the 16 GPUs of its 2 nodes stay idle",
            "more instances, or resources.share_nodes: true",
        ),
    ],
)
def test_rule(tmp_path, rule, change, field, message, hint):
    said = [item for item in found(tmp_path, changed(change, text=GOOD)) if item.rule == rule]
    assert [(item.field, item.severity) for item in said] == [(field, RULES[rule].severity)]
    assert message in said[0].message
    assert said[0].line > 0
    assert (hint in said[0].hint) if hint else said[0].hint is None
    assert said[0].render().split("\n")[0].endswith(f"[{rule}]")
    # The same recipe with an answer says nothing of the rule, and stays the same in its lock.
    answered = changed(change, text=GOOD) + f"lint: {{{rule}: it is meant}}\n"
    assert [item for item in found(tmp_path, answered) if rule in (item.rule, item.field.rpartition(".")[2])] == []


def test_a_flag_of_every_role_is_pointed_at_where_it_stands(tmp_path):
    moved = changed((f"      {SEQS}\n", ""), ("max-model-len: 4096}", "max-num-seqs: 31}"), text=GOOD)
    assert [(item.field, item.line) for item in found(tmp_path, moved)] == [("engine.args.max-num-seqs", 4)]


def test_every_rule_is_tried():
    (mark,) = test_rule.pytestmark
    assert {row[0] for row in mark.args[1]} == RULES.keys()


@pytest.mark.parametrize(
    "change",
    [
        (SEQS, "max-num-seqs: 33"),
        (GRAPH, CONFIG % 256),
        (GRAPH, "compilation-config: {cudagraph_mode: NONE, max_cudagraph_capture_size: 3}"),
        (GRAPH, "compilation-config: {cudagraph_mode: FULL_DECODE_ONLY}"),
        (TOKENS, "max-num-batched-tokens: 1k"),
        ("v0.26.0", "nightly-a9a17e7095a66ef6c6685a1c7ddd657781a78d3c"),
        ("v0.26.0", "nightly-dev-arm64-cu13.0.1-426e59f"),
        ("vllm/vllm-openai:v0.26.0", "/images/vllm.sqsh"),
        ("vllm-openai:v0.26.0", "vllm-openai:latest@sha256:" + "0" * 64),
        ("vllm/vllm-openai:v0.26.0", "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.2.0"),
        ("vllm/vllm-openai:v0.26.0", "registry:5000/vllm/vllm-openai:v0.26.3-cu130"),
        ("hf:org/model@0123abc", "/models/m"),
        ("args: {}", "args: {speculative-config: {method: mtp, num_speculative_tokens: 1}}"),
        ("args: {}", "args: {enforce-eager: true, stream-interval: 50, max-num-seqs: 1}"),
        ("requests_per_concurrency: 10}", "requests_per_concurrency: 1}"),
        ("gpus_per_node: 8}", "gpus_per_node: 8, share_nodes: true}"),
    ],
)
def test_what_is_meant_is_let_pass(tmp_path, change):
    assert [item for item in found(tmp_path, changed(change, text=GOOD)) if item.rule] == []


def test_equal_speculation_on_a_hybrid_passes(tmp_path):
    # vLLM reads these keys with dashes too.
    prefill = "args: {speculative-config: {method: mtp, num-speculative-tokens: 3}}"
    state = ("max-model-len: 4096", "max-model-len: 4096, mamba-ssm-cache-dtype: bfloat16")
    assert [item for item in found(tmp_path, changed(("args: {}", prefill), state, text=GOOD)) if item.rule] == []


def test_answer_to_no_rule_is_refused_and_one_to_nothing_is_noted(tmp_path):
    (problem,) = found(tmp_path, GOOD + "lint: {eager-decod: why}\n")
    assert (problem.severity, problem.field) == ("error", "lint.eager-decod")
    assert problem.hint == "did you mean `eager-decode`?"
    (problem,) = found(tmp_path, GOOD + "lint: {eager-decode: why}\n")
    assert (problem.severity, problem.message) == ("note", "the rule finds nothing here")


def test_an_error_is_not_answered_and_silences_the_rules(tmp_path):
    wrong = changed((SEQS, "max-num-sqes: 1"), (GRAPH, "enforce-eager: true"), text=GOOD)
    (problem,) = found(tmp_path, wrong + "lint: {max-num-seqs-below-load: why}\n")
    assert (problem.severity, problem.rule) == ("error", None)


def test_idle_gpus_are_those_of_the_plan():
    """The rule counts nodes by itself: it stands below the planner."""
    counted = 0
    for path in sorted((ROOT / "recipes").glob("[!c]*/*.yaml")):
        recipe = load_recipe(path).recipe
        if recipe.resources.device != "gpu" or recipe.resources.share_nodes:
            continue
        gpus = build_plan(recipe, any_site(recipe)).gpus
        said = sum(int(fault.message.split()[0]) for fault in RULES["gpus-idle"].check(recipe))
        assert said == (gpus.allocated - gpus.working if gpus.allocated > recipe.resources.gpus_per_node else 0), path
        counted += 1
    assert counted > 10
