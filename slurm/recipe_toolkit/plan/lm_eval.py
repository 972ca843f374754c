"""The command line of lm-evaluation-harness (0.4.13; facts from ``lm_eval/_cli/run.py`` and ``lm_eval/models``).

It asks the API in text: ``local-completions`` or ``local-chat-completions``. Its own limit of 300 s for an answer would
cut long reasoning short; the point's time holds instead. Of prompts whose tokens' likelihoods are compared it keeps
the last 2047 tokens unless it is told the model's length, so it is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_toolkit.errors import Problem
from recipe_toolkit.plan import flags
from recipe_toolkit.plan.load import Tokenizer
from recipe_toolkit.plan.values import Join, Json, RunPath, Value
from recipe_toolkit.recipe import Benchmark

# It puts the time between name and suffix.
OUTPUT = "lm_eval.json"

_MODELS = {
    "completions": ("local-completions", "/v1/completions"),
    "chat": ("local-chat-completions", "/v1/chat/completions"),
}

RESERVED: Mapping[str, str] = {
    **dict.fromkeys(("model", "M"), "it stands in endpoint"),
    **dict.fromkeys(("tasks", "t"), "it stands in tasks"),
    **dict.fromkeys(("limit", "L"), "it stands in limit"),
    **dict.fromkeys(("samples", "E"), "limit says how many documents"),
    **dict.fromkeys(("num-fewshot", "f"), "it stands in num_fewshot"),
    "include-path": "it stands in data",
    "apply-chat-template": "it follows from endpoint",
    **dict.fromkeys(("output-path", "o"), "artifacts have one place"),
    **dict.fromkeys(("log-samples", "s"), "results are checked against the samples"),
    **dict.fromkeys(("predict-only", "x"), "without scores there is nothing to judge"),
    **dict.fromkeys(("use-cache", "c"), "answers of another run say nothing of this one"),
    **dict.fromkeys(("batch-size", "b", "max-batch-size"), "a request is one prompt"),
    "device": "the model is served elsewhere",
    **dict.fromkeys(("config", "C"), "flags of a file would not be checked, nor stand in the plan"),
    "a": "write model_args",
}
MODEL_ARGS: Mapping[str, str] = {
    **dict.fromkeys(("base_url", "model", "pretrained"), "the plan sets it"),
    **dict.fromkeys(("tokenizer", "tokenizer_backend", "revision"), "it stands in model.tokenizer"),
    "tokenized_requests": "prompts are sent as text",
    "num_concurrent": "it stands in concurrency",
    "timeout": "it stands in timeout",
    "batch_size": "a request is one prompt",
    **dict.fromkeys(("auth_token", "header"), "an argument stands in plain sight of every user of a node"),
}


def refuse(benchmark: Benchmark, at: str) -> Iterator[Problem]:
    """A problem for each model argument that the toolkit sets itself, or that is no mapping."""
    for name in ("model_args", "gen_kwargs", "metadata"):
        given = _document(benchmark.args, name)
        if given is not None and not isinstance(given, Mapping):
            yield Problem("recipe", 0, 0, f"{at}.{name}", "is no mapping", f"{name}: {{NAME: VALUE}}")
    given = _document(benchmark.args, "model_args")
    for key in given if isinstance(given, Mapping) else ():
        if key in MODEL_ARGS:
            said = f"cannot be set: {MODEL_ARGS[key]}"
            yield Problem("recipe", 0, 0, f"{at}.model_args.{key}", said, "leave it out")


def _document(args: Mapping[str, Any], name: str) -> Any:
    return next((value for key, value in args.items() if key.replace("-", "_") == name), None)


def arguments(
    benchmark: Benchmark,
    entry: Value,
    model: str,
    tokenizer: Tokenizer,
    folder: str,
    length: int | None,
    data: str | None,
) -> list[Value]:
    """What follows the program's name.

    ``entry``: URL of what answers. ``folder``: the artifacts', in the run folder. ``length``: tokens that the
    served model takes, None if the recipe does not say. ``data``: folder of further tasks, on the nodes.
    """
    kind, path = _MODELS[benchmark.endpoint]
    given = _document(benchmark.args, "model_args")
    own: dict[str, Any] = {"base_url": Join((entry, path)), "model": model}
    own |= {"num_concurrent": benchmark.concurrency[0], "timeout": max(round(benchmark.timeout_s), 1)}
    if benchmark.endpoint == "completions":
        own |= {"tokenizer_backend": "huggingface", "tokenizer": tokenizer.where, "tokenized_requests": False}
        own |= {"revision": tokenizer.revision} if tokenizer.revision else {}
        own |= {"max_length": length} if length else {}
    words: list[Value] = ["run", "--model", kind]
    words += ["--model_args", Json({**own, **(given if isinstance(given, Mapping) else {})})]
    words += ["--tasks", ",".join(benchmark.tasks)]
    words += ["--include_path", data] if data else []
    words += ["--apply_chat_template"] if benchmark.endpoint == "chat" else []
    words += ["--num_fewshot", str(benchmark.num_fewshot)] if benchmark.num_fewshot is not None else []
    words += ["--limit", str(benchmark.limit)] if benchmark.limit is not None else []
    words += ["--output_path", RunPath(f"{folder}/{OUTPUT}"), "--log_samples"]
    return [*words, *_render(benchmark.args)]


def _render(args: Mapping[str, Any]) -> Sequence[str]:
    """Its flags have underscores, and argparse takes no other spelling."""
    rest = {key: value for key, value in args.items() if key.replace("-", "_") != "model_args"}
    words: list[str] = []
    for key, value in rest.items():
        name, *values = flags.render({key: value}) or [""]
        words += [f"--{key.lstrip('-').replace('-', '_')}", *values] if name else []
    return words
