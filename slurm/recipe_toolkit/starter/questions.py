"""What `recipe new` asks, in this order, and what it presumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.schema_check import load_schema
from recipe_toolkit.starter.values import NONE, is_alias, number, numbers, optional, role, short

Answers = Mapping[str, Any]
RUNTIMES: Sequence[str] = load_schema("cluster")["$defs"]["container"]["properties"]["runtime"]["enum"]
# These start from an image's file.
FROM_FILES = ("enroot", "apptainer", "pyxis")


@dataclass(frozen=True)
class Site:
    """What this machine shows by itself.

    ``partitions``: name to the GPUs of its nodes (kind or None, GPUs a node) where all are of one kind, the default
    partition first. ``profiles``: names that ``--cluster`` finds, without ``local``. ``vllm``: the virtual environment
    that is active and holds vLLM. ``models``: aliases of the profile that is used. ``version``: the newest known vLLM.
    """

    sbatch: bool = False
    partitions: Mapping[str, tuple[str | None, int] | None] | None = None
    profiles: Sequence[str] = ()
    vllm: str | None = None
    models: Sequence[str] = ()
    version: str = "0"


def _always(_answers: Answers) -> bool:
    return True


@dataclass(frozen=True)
class Question:
    """``default`` gives the text that is taken where nothing is said, or None where nothing can be presumed."""

    key: str
    ask: str
    default: Callable[[Answers, Site], str | None]
    parse: Callable[[str], Any] = str
    when: Callable[[Answers], bool] = _always
    choices: Callable[[Site], Sequence[str]] = lambda _site: ()
    closed: bool = True
    metavar: str = "TEXT"

    @property
    def flag(self) -> str:
        """The option that answers it."""
        return f"--{self.key.replace('_', '-')}"


def _fixed(text: str) -> Callable[[Answers, Site], str]:
    return lambda _answers, _site: text


def _has_profile(answers: Answers) -> bool:
    return answers.get("profile") is not None


def _on_slurm(answers: Answers) -> bool:
    return _has_profile(answers) and answers.get("scheduler") == "slurm"


def _for_vllm(answers: Answers) -> bool:
    return _has_profile(answers) and answers.get("engine") == "vllm"


def _profile(_answers: Answers, site: Site) -> str:
    return "mysite" if site.sbatch and not site.profiles else NONE


def _partition(_answers: Answers, site: Site) -> str:
    return next(iter(site.partitions or ()), NONE)


def _gpus(answers: Answers, site: Site) -> tuple[str | None, int] | None:
    return (site.partitions or {}).get(answers.get("partition") or "")


def _gpu(answers: Answers, site: Site) -> str:
    known = _gpus(answers, site)
    return known[0] if known and known[0] else "simulated" if answers["engine"] == "sim" else "H200"


def _model(answers: Answers, site: Site) -> str:
    if site.models and not _has_profile(answers):
        return site.models[0]
    return "tiny" if answers["engine"] == "sim" and not _has_profile(answers) else "hf:Qwen/Qwen3-0.6B"


def _gpus_per_node(answers: Answers, site: Site) -> str:
    known = _gpus(answers, site)
    return str(known[1] if known else 8)


def _disaggregated(answers: Answers) -> bool:
    return answers.get("shape") == "disaggregated"


def _name(answers: Answers, _site: Site) -> str:
    shape = f"{answers['prefill']['instances']}p{answers['decode']['instances']}d" if _disaggregated(answers) else "agg"
    return f"{short(answers['model'])}-{short(answers['gpu'])}-{shape}"


_SIZES = "INSTANCES:SIZES, such as 2:tp4 or 1:dp8,ep"

QUESTIONS = (
    Question("engine", "Engine: vLLM, or its simulation", _fixed("vllm"), choices=lambda _site: ("vllm", "sim")),
    Question("engine_version", "Version of vLLM", lambda _answers, site: site.version),
    Question("profile", "Write a cluster profile too: its name, or - for none", _profile, optional),
    Question(
        "scheduler",
        "Scheduler",
        lambda _answers, site: "slurm" if site.sbatch else "local",
        when=_has_profile,
        choices=lambda _site: ("slurm", "local"),
    ),
    Question(
        "runs",
        "Folder of the runs, on a file system that all nodes share",
        lambda answers, _site: "~/recipe-runs" if answers["scheduler"] == "slurm" else "runs",
        when=_has_profile,
    ),
    Question(
        "partition",
        "Partition, or - for the site's default",
        _partition,
        optional,
        _on_slurm,
        lambda site: list(site.partitions or ()),
        closed=False,  # sinfo hides some
    ),
    Question("account", "Account, or - for your default", _fixed(NONE), optional, _on_slurm),
    Question("runtime", "Container runtime", _fixed("none"), when=_for_vllm, choices=lambda _site: RUNTIMES),
    Question(
        "image",
        "Image that holds vLLM",
        lambda answers, _site: f"vllm/vllm-openai:v{answers['engine_version']}",
        when=lambda answers: _for_vllm(answers) and answers.get("runtime") != "none",
    ),
    Question(
        "image_cache",
        "Folder where images are kept as files, on a file system that all nodes share",
        _fixed("~/recipe-images"),
        when=lambda answers: _for_vllm(answers) and answers.get("runtime") in FROM_FILES,
    ),
    Question(
        "venv",
        "Virtual environment that holds vLLM on the nodes, or - where vllm is on their PATH",
        lambda _answers, site: site.vllm or NONE,
        optional,
        lambda answers: _for_vllm(answers) and answers.get("runtime") == "none",
    ),
    Question("model", "Model: a path on the nodes, an alias of the profile, or hf:ORG/REPO", _model),
    Question(
        "model_path",
        "Where that model is on the nodes: a path, or hf:ORG/REPO",
        lambda _answers, _site: None,
        when=lambda answers: _has_profile(answers) and is_alias(answers.get("model", "/")),
    ),
    Question("gpu", "Kind of GPU", _gpu),
    Question("gpus_per_node", "GPUs of a node", _gpus_per_node, number, metavar="N"),
    Question(
        "shape",
        "Prefill and decode in the same instances, or apart",
        _fixed("aggregated"),
        choices=lambda _site: ("aggregated", "disaggregated"),
    ),
    Question(
        "serve", f"Instances: {_SIZES}", _fixed("1:tp1"), role, lambda answers: answers.get("shape") == "aggregated"
    ),
    Question("prefill", f"Prefill instances: {_SIZES}", _fixed("1:tp1"), role, _disaggregated),
    Question("decode", f"Decode instances: {_SIZES}", _fixed("1:tp1"), role, _disaggregated),
    Question("client", "Benchmark client", _fixed("aiperf"), choices=lambda _site: ("aiperf", "vllm-bench")),
    Question("isl", "Input length of a request, in tokens", _fixed("1024"), number, metavar="N"),
    Question("osl", "Output length of a request, in tokens", _fixed("128"), number, metavar="N"),
    Question(
        "concurrency",
        "Requests in flight, a measurement for each: such as 1,8,32",
        _fixed("1,8,32"),
        numbers,
        metavar="N,N…",
    ),
    Question("name", "Name of the recipe", _name),
)


def presumed(answers: Answers, site: Site) -> dict[str, Any]:
    """The answers with what is presumed for each question after them; a stand-in where nothing can be."""
    whole = dict(answers)
    for question in QUESTIONS:
        if question.key not in whole and question.when(whole):
            text = question.default(whole, site)
            whole[question.key] = question.parse("/any" if text is None else text)
    return whole
