"""lm-evaluation-harness as a client: its command, and what a recipe may not say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plankit import bindings
from recipe_support import GOOD, changed, said
from recipe_toolkit.cluster import Cluster, Container, Tool
from recipe_toolkit.errors import InputError
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.plan.values import Program
from recipe_toolkit.recipe import Recipe
from recipe_toolkit.recipe_loader import load_recipe

AIPERF = "{client: aiperf,"


def recipe(tmp_path: Path, first: str) -> Recipe:
    """The good recipe with ``first`` before its own benchmarks."""
    path = tmp_path / "r.yaml"
    path.write_text(with_first(first))
    return load_recipe(path).recipe


def with_first(first: str) -> str:
    line = next(line for line in GOOD.splitlines() if AIPERF in line)
    return changed((line, f"{line[: line.index('-')]}- {{client: lm-eval, {first}}}\n{line}"))


def planned(tmp_path: Path, first: str, **site: Any) -> Plan:
    site = {"tools": {"lm-eval": Tool(venv="/opt/lm")}, **site}
    return build_plan(recipe(tmp_path, first), Cluster("s", "slurm", "/runs", **site))


def words(plan: Plan) -> list[str]:
    return list(bind_process(plan.benchmarks[0].process, bindings(plan)).argv)


def test_it_runs_where_the_recipe_lists_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, "tasks: [gsm8k], limit: 10, min: {gsm8k: 93.5}")
    first, second = plan.benchmarks[:2]
    assert (first.id, first.client, second.client) == ("lm-eval", "lm-eval", "aiperf")
    assert first.accuracy is not None
    assert (first.accuracy.tasks, first.accuracy.limit, first.accuracy.minimum) == (("gsm8k",), 10, {"gsm8k": 93.5})
    assert second.accuracy is None


def test_completions_are_asked_in_text_with_the_models_tokenizer_and_length(tmp_path: Path) -> None:
    argv = words(planned(tmp_path, "tasks: [gsm8k, aime25], concurrency: 64, timeout: 2h, num_fewshot: 0"))
    model_args = json.loads(argv.pop(argv.index("--model_args") + 1))
    base_url = model_args.pop("base_url")
    assert base_url.startswith("http://10.0.0.")
    assert base_url.endswith("/v1/completions")
    assert model_args == {
        "model": "llama",
        "num_concurrent": 64,
        "timeout": 7200,
        "tokenizer_backend": "huggingface",
        "tokenizer": "/models/llama",
        "tokenized_requests": False,
        "max_length": 4096,
    }
    run = bindings(planned(tmp_path, "tasks: [gsm8k]")).run_folder
    expected = f"""run --model local-completions --model_args --tasks gsm8k,aime25 --num_fewshot 0
    --output_path {run}/bench/lm-eval/lm_eval.json --log_samples"""
    assert argv[1:] == expected.split()


def test_chat_needs_no_tokenizer_and_flags_keep_their_underscores(tmp_path: Path) -> None:
    first = (
        "name: gsm, endpoint: chat, tasks: [gsm8k], args: {gen-kwargs: {max_gen_toks: 4096}, "
        'model_args: {think_end_token: "</think>", max_retries: 1}, trust_remote_code: true}'
    )
    argv = words(planned(tmp_path, first))
    model_args = json.loads(argv[argv.index("--model_args") + 1])
    assert model_args["base_url"].endswith("/v1/chat/completions")
    assert {key: model_args[key] for key in ("think_end_token", "max_retries")} == {
        "think_end_token": "</think>",
        "max_retries": 1,
    }
    assert not {"tokenizer", "max_length"} & set(model_args)
    assert argv[argv.index("--model") + 1] == "local-chat-completions"
    assert "--apply_chat_template" in argv
    assert argv[-3:] == ["--gen_kwargs", '{"max_gen_toks":4096}', "--trust_remote_code"]
    assert argv.count("--model_args") == 1


def test_data_is_an_alias_of_the_profile_or_a_path(tmp_path: Path) -> None:
    first = "tasks: [sums], data: own-tasks"
    argv = words(planned(tmp_path, first, data={"own-tasks": "/shared/tasks"}))
    assert argv[argv.index("--include_path") + 1] == "/shared/tasks"
    argv = words(planned(tmp_path, "tasks: [sums], data: /elsewhere"))
    assert argv[argv.index("--include_path") + 1] == "/elsewhere"
    with pytest.raises(
        InputError, match=r"benchmarks.0.data: 'own-tasks' is no data of the profile s.*\n.*did you mean"
    ):
        planned(tmp_path, first, data={"own-taks": "/shared/tasks"})


def test_in_a_container_it_finds_its_data_and_the_tokenizer(tmp_path: Path) -> None:
    site = {
        "container": Container("docker"),
        "tools": {"lm-eval": Tool(image="lm-eval:1")},
        "data": {"t": "/shared/tasks"},
    }
    site["tools"] |= {name: Tool(image=f"{name}:1") for name in ("vllm", "aiperf", "vllm-router", "sim")}
    plan = planned(tmp_path, "tasks: [sums], data: t", **site)
    assert plan.benchmarks[0].process.image == "lm-eval:1"
    argv = " ".join(words(plan))
    assert "/shared/tasks:/shared/tasks:ro" in argv
    assert "/models/llama:/models/llama:ro" in argv
    assert " lm_eval " in argv.replace('"$@"', "")


def test_it_is_looked_for_under_its_programs_name(tmp_path: Path) -> None:
    assert words(planned(tmp_path, "tasks: [a]"))[:2] == ["/opt/lm/bin/lm_eval", "run"]
    assert planned(tmp_path, "tasks: [a]", tools={}).benchmarks[0].process.argv[0] == Program("lm_eval")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("{tasks: x}", "benchmarks.0.args.tasks: cannot be set: it stands in tasks"),
        ("{num_fewshot: 5}", "cannot be set: it stands in num_fewshot"),
        ("{apply_chat_template: true}", "cannot be set: it follows from endpoint"),
        ("{predict-only: true}", "cannot be set: without scores"),
        ("{use_cache: /x}", "cannot be set: answers of another run"),
        ("{model_args: {base_url: x}}", "benchmarks.0.args.model_args.base_url: cannot be set: the plan sets it"),
        ("{model_args: {header: {a: b}}}", "in plain sight of every user"),
        ("{model_args: a=b}", r"benchmarks.0.args.model_args: is no mapping"),
        ("{gen_kwargs: temperature=0}", r"benchmarks.0.args.gen_kwargs: is no mapping"),
    ],
)
def test_what_the_toolkit_sets_is_refused(tmp_path: Path, args: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(tmp_path, f"tasks: [a], args: {args}")


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("limit: 4", "benchmarks.0.tasks: missing"),
        ("tasks: []", "benchmarks.0.tasks: "),
        ("tasks: [a], isl: 5", "benchmarks.0.isl: "),
        ("tasks: [gsm8k], min: {gsm8: 4}", "gsm8 is none of the tasks gsm8k\n  hint: did you mean `gsm8k`?"),
        ("tasks: [gsm8k], min: {gsm8k: 101}", "benchmarks.0.min.gsm8k: "),
        ("tasks: ['a b']", "benchmarks.0.tasks.0: 'a b' is not the name of a task"),
        ("tasks: [--x]", "--x begins with -, as a flag does"),
        (
            "tasks: [a], args: {gen_kwarg: 5}",
            "lm-eval 0.4.13 has no flag --gen-kwarg\n  hint: did you mean `gen-kwargs`?",
        ),
        ("tasks: [a], concurrency: [1, 2]", "benchmarks.0.concurrency: "),
        ("tasks: [a]}\n  - {client: lm-eval, tasks: [b]", "lm-eval is also the name of benchmarks.0"),
    ],
)
def test_mistakes_are_found_at_the_desk(tmp_path: Path, first: str, message: str) -> None:
    assert any(message in problem for problem in said(tmp_path, with_first(first))), said(tmp_path, with_first(first))


def test_a_threshold_may_be_of_a_task_in_a_group_or_of_one_filter(tmp_path: Path) -> None:
    first = 'tasks: [mmlu_pro], min: {mmlu_pro_law: 50, "mmlu_pro/exact_match,custom-extract": 80}'
    assert said(tmp_path, with_first(first)) == []
