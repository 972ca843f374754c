"""Recipes: the schema's faults in plain words, bases, --set, and the round trip of the resolved recipe."""

from __future__ import annotations

import copy
import json
import random
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipe_support import GOOD, changed, said
from recipe_toolkit import schema_check, sim_options
from recipe_toolkit.cluster_loader import load_cluster
from recipe_toolkit.document import dump_yaml
from recipe_toolkit.durations import format_time_limit, parse_duration, parse_time_limit
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.recipe import Benchmark, Deadlines, Engine, KvTransfer, Parallel, Resources, Role, Router, Slo
from recipe_toolkit.recipe_loader import LoadedRecipe, load_recipe
from recipe_toolkit.schema_check import load_schema

SHIPPED = sorted((Path(__file__).parents[2] / "recipes").glob("[!c]*/*.yaml"))


def write(folder: Path, **texts: str) -> Path:
    """Files NAME.yaml; the path of the last one."""
    for name, text in texts.items():
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
    return path


def attempt(path: Path) -> LoadedRecipe | InputError:
    """What comes of a file; any other error is the test's failure."""
    try:
        return load_recipe(path)
    except InputError as error:
        return error


def test_a_good_recipe(tmp_path: Path) -> None:
    loaded = load_recipe(write(tmp_path, r=GOOD))
    recipe = loaded.recipe
    assert loaded.warnings == ()
    assert recipe.engine == Engine("vllm", "0.32.0", None, {"max-model-len": 4096}, {"OMP_NUM_THREADS": "1"})
    assert recipe.roles == (
        Role("prefill", 2, Parallel(tp=2), {"max-num-seqs": 8}),
        Role("decode", 1, Parallel(tp=4, dp=2), {"max-num-seqs": 16}),
    )
    assert recipe.disaggregated
    assert recipe.kv_transfer == KvTransfer("nixl")
    assert recipe.router == Router()
    assert recipe.benchmarks == (
        Benchmark("aiperf", "aiperf-1024x128", 1024, 128, (1, 8), requests_per_concurrency=10),
        Benchmark("command", "command", command=("my-bench", "--quick"), timeout_s=1800.0),
    )
    assert recipe.deadlines == Deadlines(ready_s=5400.0, drain_s=45.0)
    assert recipe.time_limit_s == 4 * 3600


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/llama-8b", "llama-8b"),
        ("/models/llama-8b/", "llama-8b"),
        ("hf:meta-llama/Llama-3.1-8B@main", "Llama-3.1-8B"),
        ("llama", "llama"),
        ("/", "/"),
    ],
)
def test_the_served_name_is_the_last_part_of_the_path(tmp_path: Path, path: str, name: str) -> None:
    text = changed(("{path: /models/llama, served_name: llama}", f"{{path: '{path}'}}"))
    assert load_recipe(write(tmp_path, r=text)).recipe.model.served_name == name


# (what is replaced, by what, what is said)
SCHEMA_FAULTS = [
    ("tp: 4", "tp: two", "r.yaml:12:41: roles.decode.parallel.tp: 'two' is not an integer"),
    ("tp: 4", "tp: 0", "r.yaml:12:41: roles.decode.parallel.tp: 0 is less than 1"),
    ("tp: 4", "tp: 4.5", "r.yaml:12:41: roles.decode.parallel.tp: 4.5 is not an integer"),
    ("tp: 4", "tp: true", "r.yaml:12:41: roles.decode.parallel.tp: true is not an integer"),
    (
        "tp: 4",
        "tp: null",
        "r.yaml:12:41: roles.decode.parallel.tp: is null\n  hint: give it a value, or leave the key out",
    ),
    ("gpus_per_node: 8", "gpus_per_node: 0", "r.yaml:9:39: resources.gpus_per_node: 0 is less than 1"),
    (
        "gpus_per_node: 8",
        "gpus_per_nod: 8",
        "r.yaml:9:1: resources.gpus_per_node: missing\n"
        "  hint: GPUs that are used of each node (worker slots where `device` is cpu)\n"
        "r.yaml:9:24: resources.gpus_per_nod: unknown key\n"
        "  hint: did you mean `gpus_per_node`?",
    ),
    (
        "gpu: H200, ",
        "",
        "r.yaml:9:1: resources.gpu: missing\n"
        "  hint: name of the GPU model, for people and reports. Not needed where `device` is cpu",
    ),
    (
        "tp: 2}",
        "tp: 2}, gpu_memory: 3",
        "r.yaml:11:46: roles.prefill.gpu_memory: unknown key\n"
        "  hint: known here: instances, instances_per_node, parallel, args, env, sim",
    ),
    (
        "instances: 1",
        "instance: 1",
        "r.yaml:12:12: roles.decode.instance: unknown key\n  hint: did you mean `instances`?",
    ),
    (
        "instances: 1",
        "tp: 1",
        "r.yaml:12:12: roles.decode.tp: unknown key\n  hint: `tp` belongs in roles.ROLE.parallel",
    ),
    (
        "  kind: vllm",
        "  kind: vlm",
        "r.yaml:5:9: engine.kind: 'vlm' is not one of vllm, sim\n  hint: did you mean `vllm`?",
    ),
    ("kind: vllm", "kind: 3", "r.yaml:5:9: engine.kind: 3 is not one of vllm, sim"),
    (
        '"0.32.0"',
        "0.32",
        'r.yaml:6:12: engine.version: 0.32 is not a version such as "0.32.0"\n  hint: in quotes it is a string: "0.32"',
    ),
    (
        '"0.32.0"',
        "0.30",
        'r.yaml:6:12: engine.version: 0.3 is not a version such as "0.32.0"\n'
        '  hint: in quotes it is a string: "0.3", or "0.30" if that was written',
    ),
    ('"0.32.0"', '"latest"', "r.yaml:6:12: engine.version: 'latest' is not a version such as \"0.32.0\""),
    ('"1"', "1", 'r.yaml:8:26: engine.env.OMP_NUM_THREADS: 1 is not a string\n  hint: in quotes it is a string: "1"'),
    (
        '"1"',
        "true",
        'r.yaml:8:26: engine.env.OMP_NUM_THREADS: true is not a string\n  hint: in quotes it is a string: "true"',
    ),
    (
        "OMP_NUM_THREADS:",
        '"A B":',
        "r.yaml:8:9: engine.env.\"A B\": 'A B' is not the name of an environment variable "
        "(letters, digits and '_', no digit first)",
    ),
    (
        "max-model-len: 4096",
        "max-model-len: ~",
        "r.yaml:7:25: engine.args.max-model-len: is null\n  hint: give it a value, or leave the key out",
    ),
    (
        "name: good",
        "name: good name",
        "r.yaml:2:7: name: 'good name' is not a name (letters, digits, '.', '_' and '-', "
        "with a letter or digit first, 80 at most)",
    ),
    (
        "name: good",
        'name: "good\\n"',
        "r.yaml:2:7: name: 'good\\n' is not a name (letters, digits, '.', '_' and '-', "
        "with a letter or digit first, 80 at most)",
    ),
    (
        "name: good\n",
        "",
        "r.yaml:1:1: name: missing\n  hint: name of the recipe; it begins the names of runs and of the Slurm job",
    ),
    (
        "deadlines:",
        "published: [{isl: 1024, metrics: {ttft_ms: 3}}]\ndeadlines:",
        "r.yaml:18:35: published.0.metrics.ttft_ms: 'ttft_ms' is not a metric\n  hint: did you mean `ttft_p99_ms`?",
    ),
    ("schema: 1\n", "", "r.yaml:1:1: schema: missing\n  hint: version of this format: 1"),
    ("schema: 1", "schema: 2", "r.yaml:1:9: schema: 2 is not 1\n  hint: the version of the format that is read"),
    (
        "resources:",
        "resorces:",
        "r.yaml:1:1: resources: missing\n  hint: the nodes that the recipe is written for\n"
        "r.yaml:9:1: resorces: unknown key\n  hint: did you mean `resources`?",
    ),
    (
        "connector: nixl",
        "connector: nixxl",
        "r.yaml:13:26: kv_transfer.connector: 'nixxl' is not one of nixl, example, decode-bench\n"
        "  hint: did you mean `nixl`?",
    ),
    (
        "round_robin",
        "round-robin",
        "r.yaml:14:18: router.policy: 'round-robin' is not one of round_robin, random, "
        "cache_aware, power_of_two, consistent_hash, kv_aware, sticky_least_loaded\n"
        "  hint: did you mean `round_robin`?",
    ),
    ("{policy: round_robin}", "none", "r.yaml:14:9: router: 'none' is not a mapping"),
    ("isl: 1024, ", "", "r.yaml:16:5: benchmarks.0.isl: missing\n  hint: input length of each request, in tokens"),
    ("isl: 1024", "isl: 1_024", "r.yaml:16:27: benchmarks.0.isl: '1_024' is not an integer\n  hint: write 1024"),
    (
        "[1, 8]",
        "4x8x16",
        "r.yaml:16:56: benchmarks.0.concurrency: '4x8x16' is not a list\n  hint: write a list: [4, 8, 16]",
    ),
    ("[1, 8]", '"4,8"', "r.yaml:16:56: benchmarks.0.concurrency: '4,8' is not a list\n  hint: write a list: [4, 8]"),
    ("[1, 8]", "8", "r.yaml:16:56: benchmarks.0.concurrency: 8 is not a list\n  hint: write a list: [8]"),
    ("[1, 8]", "[1, 8, 1]", "r.yaml:16:56: benchmarks.0.concurrency: 1 stands twice"),
    (
        "[1, 8]",
        "[]",
        "r.yaml:16:56: benchmarks.0.concurrency: is empty\n"
        "  hint: requests in flight, a point for each number. Either this, or `request_rate`, or `search`",
    ),
    ("[1, 8]", "[1, 0]", "r.yaml:16:60: benchmarks.0.concurrency.1: 0 is less than 1"),
    (
        "client: command, ",
        "",
        "r.yaml:17:5: benchmarks.1.client: missing\n"
        "  hint: `aiperf`, `vllm-bench` (vllm bench serve), "
        "`lm-eval` (accuracy, by lm-evaluation-harness), or `command`: any program",
    ),
    (
        "client: command",
        "client: vegeta",
        "r.yaml:17:14: benchmarks.1.client: 'vegeta' is not one of aiperf, vllm-bench, lm-eval, command",
    ),
    (
        "timeout: 30m",
        "osl: 3",
        "r.yaml:17:53: benchmarks.1.osl: unknown key\n"
        "  hint: `osl` belongs in a benchmark with `client: aiperf` or `vllm-bench`",
    ),
    (
        "timeout: 30m",
        "timeout: 30 min",
        "r.yaml:17:62: benchmarks.1.timeout: '30 min' is not a duration (seconds, or such as 45s, 30m, 1h30m)",
    ),
    ("timeout: 30m", "timeout: 0s", "r.yaml:17:62: benchmarks.1.timeout: '0s' is not more than zero"),
    ("timeout: 30m", "timeout: -1", "r.yaml:17:62: benchmarks.1.timeout: -1 is not more than zero"),
    (
        "[my-bench, --quick]",
        "[]",
        "r.yaml:17:32: benchmarks.1.command: is empty\n"
        "  hint: the program and its arguments, a list of strings; no shell reads them",
    ),
    (
        "[my-bench, --quick]",
        "my-bench --quick",
        "r.yaml:17:32: benchmarks.1.command: 'my-bench --quick' is not a list\n  hint: write a list: [...]",
    ),
    (
        "04:00:00",
        "4",
        'r.yaml:19:13: time_limit: 4 has no unit\n  hint: write "HH:MM:SS" in quotes; "4" would be '
        "minutes, as for sbatch",
    ),
    (
        "04:00:00",
        "4h",
        "r.yaml:19:13: time_limit: '4h' is not a time limit (MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS)",
    ),
    ("04:00:00", "00:00:00", "r.yaml:19:13: time_limit: '00:00:00' is not more than zero"),
    ("04:00:00", "04:70:00", "r.yaml:19:13: time_limit: '04:70:00': minutes and seconds after a colon go to 59"),
    ("drain: 45", "drian: 45", "r.yaml:18:27: deadlines.drian: unknown key\n  hint: did you mean `drain`?"),
    (
        'OMP_NUM_THREADS: "1"}',
        'A: "1"}\n  sim: {startup: 1, fault: {after_s: -1}}',
        "r.yaml:9:9: engine.sim.startup: unknown key\n  hint: did you mean `startup_s`?\n"
        "r.yaml:9:21: engine.sim.fault.kind: missing\n  hint: what goes wrong\n"
        "r.yaml:9:38: engine.sim.fault.after_s: -1 is less than 0",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), SCHEMA_FAULTS, ids=[row[2].split("\n")[0] for row in SCHEMA_FAULTS])
def test_schema_faults(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert "\n".join(said(tmp_path, changed((old, new)))) == message


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("99999999999999999999", "99999999999999999999 is too large a number"),
        (".inf", ".inf is not a finite number"),
        ("!!int x", "'x' is not a YAML int"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_once(tmp_path: Path, number: str, message: str) -> None:
    assert said(tmp_path, changed(("instances: 2", f"instances: {number}"))) == [
        f"r.yaml:11:24: roles.prefill.instances: {message}"
    ]


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = changed(
        ("name: good", "name: good\nname: twice"),
        ("instances: 2", "instances: many"),
        ("gpus_per_node: 8", "gpus_per_node: 6"),
        ("requests_per_concurrency: 10", "requests: ten"),
        ('OMP_NUM_THREADS: "1"', 'VLLM_HOST_IP: "1"'),
    )
    found = [line.split("\n")[0] for line in said(tmp_path, text)]
    assert found == [
        "r.yaml:3:1: key `name` stands twice; first in line 2",
        "r.yaml:9:9: engine.env.VLLM_HOST_IP: cannot be set: each process is given its own node's address",
        "r.yaml:12:24: roles.prefill.instances: 'many' is not an integer",
        "r.yaml:13:41: roles.decode.parallel.tp: a replica of tp 4 x pp 1 = 4 GPUs does not divide a node of 6 GPUs",
        "r.yaml:17:74: benchmarks.0.requests: 'ten' is not an integer",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.yaml:1:1: is empty"),
        ("- a\n", "r.yaml:1:1: holds a list, not a mapping"),
        ("just words\n", "r.yaml:1:1: holds 'just words', not a mapping"),
    ],
)
def test_files_that_hold_no_mapping(tmp_path: Path, text: str, message: str) -> None:
    assert said(tmp_path, text) == [message]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("45s", 45),
        ("1.5s", 1.5),
        ("30m", 1800),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1d1h1m1s", 90061),
    ],
)
def test_durations(value: Any, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["", "m", "30", "30 m", "m30", "1m1h", "-1s", "1.5h", "1e3s", "٣s", "9" * 50, "400d"])
def test_what_is_no_duration(value: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("90:00", 5400),
        ("00:30", 30),
        ("04:00:00", 14400),
        ("48:00:00", 172800),
        ("1-00", 86400),
        ("1-12:30", 131400),
        ("2-00:00:01", 172801),
    ],
)
def test_time_limits(text: str, seconds: int) -> None:
    assert parse_time_limit(text) == seconds
    assert parse_time_limit(format_time_limit(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "0", "4h", "1:2:3:4", "-1", "1-", "UNLIMITED", "1-0:0:0:0", "367-00", "٣", " 30"])
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time_limit(text)


def test_a_limit_that_looks_like_hours_is_warned_of(tmp_path: Path) -> None:
    assert said(tmp_path, changed(("04:00:00", "04:00")), warnings=True) == [
        "r.yaml:19:13: warning: time_limit: 04:00 is 4 minutes and 0 seconds\n  hint: for hours, write 04:00:00"
    ]


# Bases


def test_extends_merges_deeply_and_null_deletes(tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    (tmp_path / "bases" / "low.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "bases" / "mid.yaml").write_text("extends: low.yaml\nname: mid\ntime_limit: 30\n".replace("30", '"30"'))
    top = (
        "extends: bases/mid.yaml\nroles: {prefill: null, decode: null, serve: {parallel: {tp: 8}}}\nkv_transfer: null\n"
    )
    top += "engine: {args: {max-model-len: 8192, seed: 1}}\nbenchmarks: [{client: command, command: [x]}]\n"
    recipe = load_recipe(write(tmp_path, top=top)).recipe
    assert recipe.name == "mid"
    assert recipe.time_limit_s == 1800
    assert recipe.roles == (Role("serve", 1, Parallel(tp=8)),)
    assert recipe.engine.args == {"max-model-len": 8192, "seed": 1}
    assert recipe.engine.env == {"OMP_NUM_THREADS": "1"}
    assert [item.client for item in recipe.benchmarks] == ["command"]


def test_a_fault_is_placed_in_the_file_that_holds_it(tmp_path: Path) -> None:
    low = changed(("tp: 4", "tp: four"))
    top = "extends: ./low.yaml\nroles:\n  prefill: {instances: x}\n"
    with pytest.raises(InputError) as caught:
        load_recipe(write(tmp_path, low=low, top=top))
    assert [item.render().replace(f"{tmp_path}/", "") for item in caught.value.problems] == [
        "low.yaml:12:41: roles.decode.parallel.tp: 'four' is not an integer",
        "top.yaml:3:24: roles.prefill.instances: 'x' is not an integer",
    ]


def test_a_missing_key_is_placed_in_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(write(tmp_path, low=GOOD, top="extends: low.yaml\nresources: {gpus_per_node: null}\n"))
    assert caught.value.problems[0].render().startswith(f"{tmp_path}/top.yaml:2:1: resources.gpus_per_node: missing")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"a": "extends: b.yaml\n"}, "a.yaml:1:10: extends: no such file: b.yaml"),
        ({"a": "extends: a.yaml\n"}, "a.yaml:1:10: extends: recipes extend each other: a.yaml -> a.yaml"),
        (
            {"c": "extends: a.yaml\n", "b": "extends: ../DIR/c.yaml\n", "a": "x: 1\nextends: b.yaml\n"},
            "c.yaml:1:10: extends: recipes extend each other: a.yaml -> b.yaml -> c.yaml -> a.yaml",
        ),
        ({"a": "extends: [b.yaml]\n"}, "a.yaml:1:10: extends: a list is not the path of a base recipe"),
        ({"a": "extends:\n"}, "a.yaml:1:9: extends: null is not the path of a base recipe"),
        ({"b": "a: [\n", "a": "extends: b.yaml\n"}, "b.yaml:2:1: not YAML: did not find expected node content "
         "while parsing a flow node"),
        ({"b": "- 1\n", "a": "extends: b.yaml\n"}, "b.yaml:1:1: holds a list, not a mapping"),
        ({"b": GOOD, "a": "extends: b.yaml\nslo: null\n"}, "a.yaml:2:6: slo: null deletes a key of the base, "
         "which has none here"),
        ({"a": 'extends: "b\\0.yaml"\n'}, "a.yaml:1:10: a string cannot hold '\\x00'"),
    ],
)  # fmt: skip
def test_bases_that_cannot_be_used(tmp_path: Path, texts: dict[str, str], message: str) -> None:
    path = write(tmp_path, **{name: text.replace("DIR", tmp_path.name) for name, text in texts.items()})
    with pytest.raises(InputError) as caught:
        load_recipe(path)
    assert caught.value.problems[0].render().replace(f"{tmp_path}/", "") == message


def test_a_chain_of_bases_has_an_end(tmp_path: Path) -> None:
    texts = {f"r{i}": f"extends: r{i - 1}.yaml\n" for i in range(1, 30)}
    with pytest.raises(InputError, match="more than 20 bases"):
        load_recipe(write(tmp_path, **texts))


# --set


@pytest.mark.parametrize(
    ("assignment", "read"),
    [
        ("roles.decode.instances=3", lambda r: r.roles[1].instances == 3),
        ("roles.decode.parallel={tp: 8}", lambda r: r.roles[1].parallel == Parallel(tp=8)),
        ("benchmarks.0.isl=128", lambda r: r.benchmarks[0].isl == 128),
        ("benchmarks.0.concurrency=[2, 4]", lambda r: r.benchmarks[0].concurrency == (2, 4)),
        ("benchmarks.0.concurrency.1=4", lambda r: r.benchmarks[0].concurrency == (1, 4)),
        ("engine.version=0.33", lambda r: r.engine.version == "0.33"),
        ("engine.env.X=1", lambda r: r.engine.env["X"] == "1"),
        ("engine.env.X=''", lambda r: r.engine.env["X"] == ""),
        ('kv_transfer.extra."a.b"=true', lambda r: r.kv_transfer.extra["a.b"] is True),
        ("engine.args.max-model-len=8k", lambda r: r.engine.args["max-model-len"] == "8k"),
        ("slo.ttft_s=1.5", lambda r: r.slo == Slo(ttft_s=1.5)),
        ("router=null", lambda r: r.router == Router()),
        ("time_limit=60", lambda r: r.time_limit_s == 3600),
        ("deadlines.ready=2h", lambda r: r.deadlines.ready_s == 7200),
        ("description=a = b", lambda r: r.description == "a = b"),
    ],
)
def test_sets(tmp_path: Path, assignment: str, read: Any) -> None:
    assert read(load_recipe(write(tmp_path, r=GOOD), [assignment]).recipe)


def test_later_sets_win(tmp_path: Path) -> None:
    sets = ["slo={ttft_s: 1}", "slo.ttft_s=2", "roles.prefill.instances=4", "roles.prefill.instances=5"]
    recipe = load_recipe(write(tmp_path, r=GOOD), sets).recipe
    assert (recipe.slo.ttft_s, recipe.roles[0].instances) == (2, 5)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("roles.decode.instances=x", "roles.decode.instances: 'x' is not an integer"),
        ("roles.decode.instance=3", "roles.decode.instance: unknown key\n  hint: did you mean `instances`?"),
        ("rols.decode.instances=3", "rols: unknown key\n  hint: did you mean `roles`?"),
        ("benchmarks.isl=3", "benchmarks.isl: benchmarks is a list\n  hint: name its item: benchmarks.0.isl"),
        ("benchmarks.2.isl=3", "benchmarks.2: benchmarks has 2 items; the first is 0"),
        ("benchmarks.0=null", "benchmarks.0: an item of a list cannot be deleted\n  hint: set the whole list"),
        ("name.x=3", "name.x: name is 'good', not a mapping"),
        ("routr=null", "routr: null deletes a key, and there is none here\n  hint: did you mean `router`?"),
        ("foo.name=null", "foo.name: null deletes a key, and there is none here"),
        ("name", "name: no = after the path\n  hint: --set name=VALUE"),
        ("=3", "no path before the first =\n  hint: --set roles.decode.instances=2"),
        ("a..b=3", "no path before the first =\n  hint: --set roles.decode.instances=2"),
        ("name=", "name: no value after =\n  hint: null deletes the key, '\"\"' is an empty string"),
        ("name=[a", "not YAML: did not find expected ',' or ']' while parsing a flow sequence "
         "that begins in line 1\n  hint: quote the value: --set a.b='\"text\"'"),
        ("name={a: 1, a: 2}", "key `a` stands twice; first in line 1\n  hint: quote the value: --set a.b='\"text\"'"),
        ("resources.gpus_per_node=6", None),
    ],
)  # fmt: skip
def test_sets_that_are_refused(tmp_path: Path, assignment: str, message: str | None) -> None:
    found = said(tmp_path, GOOD, assignment)
    if message is None:
        assert found[0].startswith("r.yaml:12:41: roles.decode.parallel.tp: a replica of tp 4")
    else:
        assert found == [f"--set {assignment}: {message}"]


# What it resolves to


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_are_good_and_run_again_from_what_they_resolve_to(tmp_path: Path, path: Path) -> None:
    loaded = load_recipe(path)
    again = load_recipe(write(tmp_path, lock=dump_yaml(loaded.data)))
    # Of a build between releases, or a fork, there is no list; what it knows beyond the nearest is told too.
    unlisted = ("engine.version", "engine.args.attention-backend")
    assert [item.render() for item in loaded.warnings if item.field not in unlisted] == []
    assert again.recipe == loaded.recipe
    assert again.data == loaded.data
    assert "extends" not in loaded.data


def test_the_resolved_recipe_keeps_what_is_free(tmp_path: Path) -> None:
    text = changed(("max-model-len: 4096", "max-model-len: 4096, hf-overrides: {a: [{}, [], {b: ''}]}"))
    loaded = load_recipe(write(tmp_path, r=text))
    assert loaded.data["engine"]["args"] == {"max-model-len": 4096, "hf-overrides": {"a": [{}, [], {"b": ""}]}}
    assert load_recipe(write(tmp_path, lock=dump_yaml(loaded.data))).recipe == loaded.recipe


def test_problems_of_later_stages_find_their_place(tmp_path: Path) -> None:
    loaded = load_recipe(write(tmp_path, r=GOOD), ["slo.ttft_s=1"])
    path = str(tmp_path / "r.yaml")
    place = [loaded.place(Problem("", 0, 0, field, "m")).render() for field in ("roles.decode.parallel.tp", "slo", "")]
    assert place == [f"{path}:12:41: roles.decode.parallel.tp: m", "--set slo.ttft_s=1: slo: m", f"{path}:1:1: m"]
    assert loaded.place(Problem("", 0, 0, "benchmarks.0.isl", "m")).line == 16
    assert loaded.place(Problem("", 0, 0, "engine.args.max-model-len", "m")).column == 25


# The schema itself


def _properties(node: Any, path: str = "") -> Any:
    if isinstance(node, dict):
        for name, item in node.get("properties", {}).items():
            if "complete" not in path:
                yield f"{path}.{name}", item
        for key, item in node.items():
            yield from _properties(item, f"{path}.{key}")
    elif isinstance(node, list):
        for index, item in enumerate(node):
            yield from _properties(item, f"{path}.{index}")


@pytest.mark.parametrize("name", ["recipe", "cluster"])
def test_every_property_is_described(name: str) -> None:
    root = load_schema(name)
    plain = {
        where: item.get("description") or root["$defs"][item["$ref"].rsplit("/", 1)[1]].get("description")
        for where, item in _properties(root)
        if not (where.endswith(".client") and where.count("if"))
        and not where.startswith((".if", ".else"))
        and ".if." not in where
    }
    assert plain
    assert [where for where, text in plain.items() if not text] == []


@pytest.mark.parametrize("name", ["recipe", "cluster"])
def test_the_schemas_are_schemas(name: str) -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(load_schema(name))


@pytest.mark.parametrize(
    ("definition", "cls", "renamed"),
    [
        ("parallel", Parallel, {}),
        ("resources", Resources, {}),
        ("kv_transfer", KvTransfer, {}),
        ("router", Router, {}),
        ("deadlines", Deadlines, {key: f"{key}_s" for key in ("bind", "images", "ready", "stall", "prove", "drain")}),
        ("load", Benchmark, {"timeout": "timeout_s"}),
        ("slo", Slo, {}),
        ("engine", Engine, {}),
        ("role", Role, {}),
    ],
)
def test_the_schema_and_the_model_have_the_same_fields_and_defaults(
    definition: str, cls: Any, renamed: dict[str, str]
) -> None:
    root = load_schema("recipe")
    assert is_dataclass(cls)
    defaults = {item.name: item.default for item in fields(cls)}
    for key, schema in root["$defs"][definition]["properties"].items():
        reference = root["$defs"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else {}
        default = schema.get("default", reference.get("default"))
        name = renamed.get(key, key)
        assert name in defaults
        if default is not None and definition != "role":
            assert defaults[name] == default


def test_the_schema_knows_what_the_simulated_engine_knows() -> None:
    sim = load_schema("recipe")["$defs"]["sim"]["properties"]
    assert set(sim) == {*sim_options.KEYS, "fault"}
    assert {key: item["default"] for key, item in sim.items() if key != "fault"} == {
        key: item.default for key, item in sim_options.KEYS.items()
    }
    assert set(sim["fault"]["properties"]) == set(sim_options.FAULT_KEYS)
    assert sim["fault"]["properties"]["kind"]["enum"] == list(sim_options.FAULT_KINDS)


# Speed and robustness


def test_loading_takes_a_few_milliseconds(tmp_path: Path) -> None:
    path = write(tmp_path, r=GOOD)
    load_recipe(path)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        load_recipe(path)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.06


# fmt: off
_JUNK = st.sampled_from([
    "null", "{}", "[]", "x", "0", "-1", "1e400", "'", '"', "*a", "&a", "<<: *a", "!!x", "é", "{a: {b: [c]}}", "??",
    "serve", "prefill", "extends: r.yaml", "name", "true", "99999999", "hf:", "$X", "{x}", "- ", ": ", "#", "\n", "|\n",
    "\t", "\0",
])
# fmt: on


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_text_makes_it_stumble(tmp_path: Path, data: st.DataObject) -> None:
    source = random.Random(data.draw(st.integers(0, 2**32)))
    words = GOOD.replace("{", " { ").replace("}", " } ").replace(",", " , ").split(" ")
    for _ in range(source.randint(1, 4)):
        spot = source.randrange(len(words))
        junk = data.draw(_JUNK)
        words[spot : spot + source.randint(0, 2)] = [junk] if source.random() < 0.8 else []
    path = tmp_path / "r.yaml"
    path.write_text(" ".join(words), encoding="utf-8")
    loaded = attempt(path)
    if isinstance(loaded, InputError):
        assert loaded.problems
        assert json.dumps([item.to_json() for item in loaded.problems])
    else:
        assert load_recipe(write(tmp_path, lock=dump_yaml(loaded.data))).recipe == loaded.recipe


def test_the_quick_yes_knows_every_keyword_of_the_schemas(tmp_path: Path) -> None:
    assert accepts("recipe", load_recipe(write(tmp_path, r=GOOD)).data)
    assert accepts("cluster", load_cluster("local").data)


def accepts(name: str, data: Any) -> bool:
    return schema_check._acceptor(name).accepts(data)


@pytest.mark.parametrize(
    "change",
    [
        ('"0.32.0"', '"0.32.0' + "a" * 50_000 + '!"'),
        ("gpus_per_node: 8", "gpus_per_node: 8, " + ", ".join(f"k{i}: 1" for i in range(10_000))),
        ("max-num-seqs: 8", ", ".join(f"flag-{i}: 1" for i in range(10_000))),
        ("[1, 8]", "[" + ", ".join(map(str, range(1, 10_000))) + "]"),
        ('OMP_NUM_THREADS: "1"', "X: " + "eyJ" * 100_000),
        ("tp: 2}", "tp: 4096, dp: 4096, pp: 4096}"),
    ],
    ids=["version", "keys", "flags", "points", "secret", "gpus"],
)
def test_what_no_honest_recipe_holds_is_refused_soon(tmp_path: Path, change: tuple[str, str]) -> None:
    start = time.perf_counter()
    attempt(write(tmp_path, r=changed(change)))
    assert time.perf_counter() - start < 10


_VALUES = st.sampled_from(
    [None, True, 0, -1, 2, 3.5, 1e9, "", "x", "0", [], [1], ["a"], {}, {"a": 1}, {"tp": 3}, [None], [[]]]
)


def _paths(node: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _paths(item, (*path, key))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_value_makes_it_stumble(tmp_path: Path, data: st.DataObject) -> None:
    recipe = load_recipe(write(tmp_path, good=GOOD)).data
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([item for item in _paths(recipe) if item]))
        holder: Any = recipe
        for part in path[:-1]:
            holder = holder[part]
        if data.draw(st.booleans()) and isinstance(holder, dict):
            path = (*path[:-1], data.draw(st.sampled_from(["tp", "extends", "isl", "x", "", "requests", "serve"])))
        holder[path[-1]] = copy.deepcopy(data.draw(_VALUES))
    # The quick yes is never wrong.
    assert not (accepts("recipe", recipe) and list(schema_check._validator("recipe").iter_errors(recipe)))
    loaded = attempt(write(tmp_path, r=dump_yaml(recipe)))
    if isinstance(loaded, InputError):
        assert loaded.problems
    else:
        assert load_recipe(write(tmp_path, lock=dump_yaml(loaded.data))).recipe == loaded.recipe
