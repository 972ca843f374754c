"""`vllm bench serve` as a client, and what changes when a recipe's client does."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plankit import CASES, RECIPES, SHIPPED, bindings, plan_file, plan_of, profile
from recipe_toolkit.cluster import Tool
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan import vllm_bench
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.values import Program
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.results import vllm_bench as results

FILES = {path.stem: path for path in [*SHIPPED, *(RECIPES / f"{name}.yaml" for name in CASES)]}
MEASURED = {
    name: [index for index, item in enumerate(load_recipe(path).recipe.benchmarks) if item.client == "aiperf"]
    for name, path in FILES.items()
}


def argv_of(name, point):
    plan = plan_of(name)
    (process,) = (item.process for item in plan.benchmarks if item.id == point)
    return bind_process(process, bindings(plan)).argv


def test_the_whole_command():
    words = """
    /opt/vllm/bin/vllm bench serve --model m --base-url http://10.0.0.1:15000
    --backend openai --endpoint /v1/completions --tokenizer /shared/models/tiny
    --dataset-name random --random-input-len 1024 --random-output-len 128 --random-range-ratio 0 --ignore-eos
    --max-concurrency 8 --num-prompts 32 --num-warmups 8 --seed 708178276 --goodput ttft:2500 tpot:20 e2el:30000
    --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --save-detailed
    --result-dir /runs/2026-01-02T03-04-05-test-abcd/bench/vllm-bench-1024x128-c8 --result-filename vllm_bench.json
    --ready-check-timeout-sec 0 --disable-tqdm
    """
    assert argv_of("vllm-bench", "vllm-bench-1024x128-c8") == words.split()


def test_the_file_that_is_written_is_the_one_that_is_read():
    assert vllm_bench.SUMMARY == results.SUMMARY


def test_a_rate_in_chat_without_warm_up_and_flags_of_the_recipe():
    argv = argv_of("vllm-bench", "chat-r0.5")
    for flag, value in (("backend", "openai-chat"), ("endpoint", "/v1/chat/completions"), ("request-rate", "0.5")):
        assert argv[argv.index(f"--{flag}") + 1] == value
    assert not {"--max-concurrency", "--num-warmups"}.intersection(argv)
    assert argv[-4:] == ["--burstiness", "2", "--temperature", "0"]


def drawn(lengths):
    """The ends of what vLLM draws input and output lengths from (`benchmarks/datasets/utils.py`)."""
    plan = build_plan(ranged(**lengths), profile("plain"))
    argv = bind_process(plan.benchmarks[0].process, bindings(plan)).argv
    given = {flag: argv[argv.index(f"--random-{flag}") + 1] for flag in ("input-len", "output-len", "range-ratio")}
    try:
        ratios = [float(given["range-ratio"])] * 2
    except ValueError:
        ratios = [json.loads(given["range-ratio"])[side] for side in ("input", "output")]
    middles = [int(given["input-len"]), int(given["output-len"])]
    ends = zip(middles, ratios, strict=True)
    return [(math.floor(middle * (1 - ratio)), math.ceil(middle * (1 + ratio))) for middle, ratio in ends]


def ranged(**lengths):
    recipe = load_recipe(RECIPES / "vllm-bench.yaml").recipe
    return dataclasses.replace(recipe, benchmarks=(dataclasses.replace(recipe.benchmarks[0], **lengths),))


LENGTHS = st.tuples(st.integers(1, 500_000), st.integers(1, 500_000)).map(sorted)


@given(LENGTHS, LENGTHS)
def test_lengths_are_drawn_from_the_range(inputs, outputs):
    """The upper end is one less where the range has no middle; two lengths that nearly share a ratio share it."""
    (isl_min, isl), (osl_min, osl) = inputs, outputs
    (low, high), (least, most) = drawn({"isl": isl, "isl_min": isl_min, "osl": osl, "osl_min": osl_min})
    assert (low, high) == (isl_min, isl - (isl - isl_min) % 2)
    assert abs(least - osl_min) <= 2
    assert abs(most - osl) <= 2


def test_a_range_is_given_as_its_middle_and_one_number_where_that_serves_both():
    lengths = {"isl": 8192, "isl_min": 6554, "osl": 1024, "osl_min": 819}
    argv = build_plan(ranged(**lengths), profile("plain")).benchmarks[0].process.argv
    at = argv.index("--random-input-len")
    words = "--random-input-len 7373 --random-output-len 921 --random-range-ratio 0.1110796"
    assert list(argv[at : at + 6]) == words.split()


def test_the_offline_hub_stays_for_it():
    process = plan_of("vllm-bench").benchmarks[0].process
    assert process.unset == ()
    assert process.env["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("tools", "head"),
    [
        ({}, Program("vllm")),
        ({"vllm": Tool(venv="/opt/engine")}, "/opt/engine/bin/vllm"),
        ({"vllm": Tool(venv="/opt/engine"), "vllm-bench": Tool(venv="/opt/client")}, "/opt/client/bin/vllm"),
        ({"vllm-bench": Tool(path="/opt/client/vllm")}, "/opt/client/vllm"),
    ],
)
def test_its_program_is_the_engines_unless_the_profile_has_another(tools, head):
    cluster = dataclasses.replace(profile("plain"), tools=tools)
    recipe = load_recipe(RECIPES / "vllm-bench.yaml").recipe
    assert build_plan(recipe, cluster).benchmarks[0].process.argv[0] == head


def test_its_image_is_the_engines_unless_the_profile_has_another():
    sets = ["benchmarks.0.client=vllm-bench"]
    recipe, cluster = load_recipe(RECIPES / "docker.yaml", sets).recipe, profile("docker")

    def image_and_program(cluster):
        argv = build_plan(recipe, cluster).benchmarks[0].process.argv
        at = argv.index("vllm")
        return argv[at - 4], *argv[at : at + 3]

    assert image_and_program(cluster) == ("vllm/vllm-openai@sha256:0000", "vllm", "bench", "serve")
    other = dataclasses.replace(cluster, tools={**cluster.tools, "vllm-bench": Tool(image="registry/vllm:2")})
    assert image_and_program(other) == ("registry/vllm:2", "vllm", "bench", "serve")


@pytest.mark.parametrize("flag", ["base-url", "num_prompts", "--seed", "save-result", "random-range-ratio", "host"])
def test_flags_that_the_plan_sets_are_refused(flag):
    value = "true" if flag == "save-result" else "3"
    load = "client: vllm-bench, isl: 1, osl: 1, concurrency: [1], requests: 1"
    sets = [f"benchmarks=[{{{load}, args: {{{flag}: {value}}}}}]"]
    with pytest.raises(InputError) as caught:
        plan_of("tp2-one-node", *sets)
    (problem,) = caught.value.problems
    assert problem.field == f"benchmarks.0.args.{flag}"
    assert problem.message.startswith("cannot be set: ")


@pytest.mark.parametrize("name", [name for name in FILES if MEASURED[name]])
def test_one_key_changes_the_client_and_nothing_but_the_client(name):
    cluster = name if name in ("docker", "podman") else "plain"
    sets = [f"benchmarks.{index}.client=vllm-bench" for index in MEASURED[name]]
    # Flags belong to one client.
    plain = [f"benchmarks.{index}.args={{}}" for index in MEASURED[name]]
    before, after = plan_file(FILES[name], cluster, *plain), plan_file(FILES[name], cluster, *plain, *sets)
    assert after.processes == before.processes
    pairs = [pair for pair in zip(before.benchmarks, after.benchmarks, strict=True) if pair[0].client == "aiperf"]
    assert pairs
    for one, other in pairs:
        assert other.client == "vllm-bench"
        same = {"id": one.id, "client": one.client, "process": one.process, "artifacts": one.artifacts}
        assert dataclasses.replace(other, **same) == one
        assert other.id == one.id.replace("aiperf-", "vllm-bench-")
        assert other.artifacts == f"bench/{other.id}"
        assert (other.process.node, other.process.secrets) == (one.process.node, one.process.secrets)


def test_a_named_benchmark_keeps_its_ids_and_seeds():
    aiperf = plan_of("clients").benchmarks[0]
    other = plan_of("clients", "benchmarks.0.client=vllm-bench", "benchmarks.0.args={}").benchmarks[0]
    assert other.id == aiperf.id
    seed = aiperf.process.argv[aiperf.process.argv.index("--random-seed") + 1]
    assert other.process.argv[other.process.argv.index("--seed") + 1] == seed


def test_a_revision_that_it_cannot_be_told_is_warned_of():
    sets = ["benchmarks.0.client=vllm-bench", "benchmarks.0.args={}"]
    (warning,) = load_recipe(RECIPES / "clients.yaml", sets).warnings
    assert warning.field == "benchmarks.0.client"
    assert warning.message.startswith("vllm bench serve knows no revision")
    assert load_recipe(RECIPES / "clients.yaml", [*sets, "model.tokenizer=tiny"]).warnings == ()
    assert load_recipe(RECIPES / "clients.yaml").warnings == ()


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ("vllm-bench", ["--request-rate", "0.5", "--max-concurrency", "1024"]),
        ("aiperf", ["--request-rate", "0.5", "--concurrency", "1024"]),
    ],
)
def test_a_rate_with_a_limit_of_what_is_in_flight(client, words):
    sets = [
        f"benchmarks=[{{client: {client}, isl: 64, osl: 8, request_rate: [0.5], max_concurrency: 1024, requests: 9}}]"
    ]
    (point,) = plan_file(RECIPES / "vllm-bench.yaml", "plain", *sets).benchmarks
    argv = point.process.argv
    start = argv.index("--request-rate")
    assert list(argv[start : start + 4]) == words
    assert (point.request_rate, point.max_concurrency, point.concurrency) == (0.5, 1024, None)
