"""The recipe and the profile that the answers make, with comments that say what else could stand there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipe_toolkit.document import dump_yaml
from recipe_toolkit.starter.questions import Answers
from recipe_toolkit.starter.values import is_alias

_WIDEST = 44  # a longer line does not move the comments of the others
_ROOM = 1024  # tokens: prompts that a client makes are not exact to the token
Line = tuple[str, str]


def recipe_text(answers: Answers, head: Sequence[str] = ()) -> str:
    """The recipe of complete answers; ``head``: lines before it."""
    lines: list[Line] = [
        ("schema: 1", ""),
        (f"name: {value(answers['name'])}", ""),
        ("model:", ""),
        (f"  path: {value(answers['model'])}", _about(answers["model"])),
        ("  # served_name: NAME", "what clients ask for; else the last part of `path`"),
        ("engine:", ""),
        (
            f"  kind: {answers['engine']}",
            "or sim: takes vLLM's flags, needs no GPU" if answers["engine"] == "vllm" else "",
        ),
        (f'  version: "{answers["engine_version"]}"', "args are checked against its flags"),
        ("  args:", "flags of `vllm serve` without dashes, for every role"),
        (f"    max-model-len: {_longest(answers)}", "room for the input and the output of a request"),
        ('  # env: {NAME: "1"}', "values are strings"),
        ("resources:", ""),
        (f"  gpu: {value(answers['gpu'])}", ""),
        (f"  gpus_per_node: {answers['gpus_per_node']}", "that are used of each node"),
        ("roles:", ""),
        *_roles(answers),
        ("benchmarks:", ""),
        (f"  - client: {answers['client']}", "aiperf or vllm-bench; the same fields"),
        (f"    isl: {answers['isl']}", "tokens that each request brings"),
        (f"    osl: {answers['osl']}", "tokens that it asks for"),
        (f"    concurrency: {value(answers['concurrency'])}", "requests in flight; a point for each number"),
        ("    requests_per_concurrency: 10", "10 x 8 requests at concurrency 8"),
        ("    warmup_per_concurrency: 1", "not counted"),
        ("# slo: {ttft_mean_s: 2.5, tpot_mean_ms: 20}", "bounds; each point says whether it met them"),
        ("# deadlines: {ready: 1h}", "until the engines are loaded and compiled"),
        ('time_limit: "01:00:00"', "of the job, HH:MM:SS"),
    ]
    return _text(head, lines)


def _about(model: str) -> str:
    if is_alias(model):
        return "an alias of the profile's `models`"
    return "pin it: hf:ORG/REPO@REVISION" if model.startswith("hf:") and "@" not in model else ""


def _longest(answers: Answers) -> int:
    wanted: int = (answers["isl"] + answers["osl"]) * 11 // 10
    return -(-wanted // _ROOM) * _ROOM


def _roles(answers: Answers) -> list[Line]:
    if answers["shape"] == "aggregated":
        return [("  serve:", ""), *_role(answers["serve"])]
    return [
        ("  prefill:", "reads prompts and hands their KV cache on"),
        *_role(answers["prefill"]),
        ("    # args: {max-num-batched-tokens: 16384}", "of this role, over engine.args"),
        ("  decode:", "takes the KV cache over and generates"),
        *_role(answers["decode"]),
        ("kv_transfer:", "how the KV cache moves"),
        ("  connector: nixl", ""),
    ]


def _role(role: dict[str, Any]) -> list[Line]:
    parallel = role["parallel"]
    gpus = parallel.get("tp", 1) * parallel.get("pp", 1) * parallel.get("dp", 1)
    said = f"{gpus} GPU{'s' if gpus > 1 else ''} each: tp x pp x dp"
    return [
        (f"    instances: {role['instances']}", ""),
        (
            f"    parallel: {value(parallel or {'tp': 1})}",
            said + ("; ep: a mixture of experts" if "ep" in parallel else ""),
        ),
    ]


def profile_text(answers: Answers, head: Sequence[str] = ()) -> str:
    """The profile of complete answers; ``head``: lines before it."""
    lines: list[Line] = [
        ("schema: 1", ""),
        (f"name: {value(answers['profile'])}", ""),
        (f"scheduler: {answers['scheduler']}", ""),
        (f"runs: {value(answers['runs'])}", "on a file system that all nodes share"),
        ("# python: /shared/venv/bin/python", "of the nodes, with this package; else the one that submits"),
    ]
    if is_alias(answers["model"]):
        lines += [
            ("models:", "what recipes call them, and where they are"),
            _pair(answers["model"], answers["model_path"]),
        ]
    else:
        lines += [("# models: {NAME: /shared/models/NAME}", "aliases for model.path of recipes")]
    lines += _tools(answers)
    lines += [
        ("# interface: ib0", "the network that the nodes' processes meet on"),
        ('# env: {UCX_NET_DEVICES: "mlx5_0:1"}', "of every process; strings"),
        ("# secrets: [HF_TOKEN]", "taken from the shell that submits, written nowhere"),
    ]
    if answers["scheduler"] == "slurm":
        lines += _slurm(answers)
    return _text(head, lines)


def _tools(answers: Answers) -> list[Line]:
    client = ("# aiperf: {venv: /shared/venvs/aiperf}", "each program may have its own; else beside python")
    router = ("# vllm-router: {venv: /shared/venvs/router}", "")
    if answers.get("image"):
        return [
            ("tools:", "where programs are"),
            (f"  vllm: {{image: {value(answers['image'])}}}", "a recipe's engine.image comes before it"),
            (f"  {client[0]}", client[1]),
            (f"  {router[0]}", ""),
            *_container(answers),
        ]
    if answers.get("venv"):
        head = [("tools:", "where programs are"), (f"  vllm: {{venv: {value(answers['venv'])}}}", "")]
        return [*head, (f"  {client[0]}", client[1]), (f"  {router[0]}", "")]
    return [("# tools: {vllm: {venv: /shared/venvs/vllm}}", "where programs are; else beside python or on PATH")]


def _container(answers: Answers) -> list[Line]:
    cache = answers.get("image_cache")
    return [
        ("container:", "how images are run"),
        (f"  runtime: {answers['runtime']}", ""),
        *([(f"  cache: {value(cache)}", "images as files; missing ones are fetched into it")] if cache else []),
        ("  # mounts: [/shared:/shared:ro]", "further folders that containers see"),
    ]


def _slurm(answers: Answers) -> list[Line]:
    said = [(key, answers[key]) for key in ("partition", "account") if answers.get(key)]
    rest = [
        ('gres_name: "gpu:h200"', "if --gres=gpu:N is not how GPUs are asked for"),
        ("max_time: 1-00:00:00", "recipes that ask for more are refused"),
        ("signal_lead: 5m", "how long before its time limit a job is warned"),
    ]
    if not said:
        return [("# slurm:", "what the batch script asks for"), *((f"#   {text}", comment) for text, comment in rest)]
    given = [_pair(key, item) for key, item in said]
    return [("slurm:", "what the batch script asks for"), *given, *((f"  # {text}", comment) for text, comment in rest)]


def _pair(key: str, item: str) -> Line:
    return f"  {value(key)}: {value(item)}", ""


def value(data: Any) -> str:
    """A value as it stands in a line of YAML, in brackets where it holds several."""
    if isinstance(data, dict):
        return "{" + ", ".join(f"{value(key)}: {value(item)}" for key, item in data.items()) + "}"
    if isinstance(data, list):
        return f"[{', '.join(map(value, data))}]"
    text = dump_yaml([data])[2:].rstrip("\n")
    plain = not isinstance(data, str) or (text == data and not set(data) & set("{}[],#&*!|>%@`"))
    return text if plain else '"' + data.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _text(head: Sequence[str], lines: Sequence[Line]) -> str:
    width = max(len(text) for text, comment in lines if comment and len(text) <= _WIDEST)
    body = [f"{text.ljust(width)}  # {comment}" if comment else text for text, comment in lines]
    return "\n".join([*head, *body]) + "\n"
