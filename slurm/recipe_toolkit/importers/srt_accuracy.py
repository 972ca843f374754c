"""srt-slurm's accuracy benchmarks to ``client: lm-eval``.

They ask other programs (sglang's ``run_eval``, sgl-eval, NeMo Skills, lm-eval with a task file of theirs), whose
prompts and ways to find an answer are not lm-eval's: scores are near one another, and not the same. What a file does
not say has the defaults of ``src/srtctl/benchmarks/NAME.py`` and ``scripts/lm-eval/bench.sh``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.faults import shown
from recipe_toolkit.importers.draft import Draft
from recipe_toolkit.importers.notes import CHANGED, LOST, SET, UNNEEDED
from recipe_toolkit.importers.reader import Cursor

_AT = ("benchmarks", 0)


@dataclass(frozen=True)
class _Suite:
    """``task``: lm-eval's, as one that generates its answer. Then srt-slurm's defaults, and who scores there."""

    task: str
    tokens: int
    threads: int
    shots: int | None = None
    repeat: int = 1
    by: str = ""


_SUITES: Mapping[str, _Suite] = {
    "gsm8k": _Suite("gsm8k", 16384, 512, shots=5, by="sglang's run_eval"),
    "gpqa": _Suite("gpqa_diamond_cot_zeroshot", 32768, 128, repeat=8, by="sgl-eval"),
    "aime": _Suite("aime25", 24576, 30, by="NeMo Skills"),
}
_TASKS = {"gsm8k": "gsm8k", "gpqa_diamond": "gpqa_diamond_cot_zeroshot"}
_SAMPLING = ("temperature", "top_p", "top_k")
# Where their own lm-eval runs, and what its results are labelled with.
_HOW = ("LOG_DIR", "EVAL_PYTHON")
_HOW_BEGINS = ("EVAL_VENV_", "EVAL_WORK_", "EVAL_RESULT_", "EVAL_SKIP_", "EVAL_USE_SYSTEM_", "EVAL_PIP_")
_LENGTHS = ("EVAL_MAX_MODEL_LEN", "MAX_MODEL_LEN", "MODEL", "MODEL_NAME", "MODEL_PATH", "OPENAI_API_KEY")


def _suite(bench: Cursor, draft: Draft) -> None:
    kind = bench.at("type")
    suite, task = _SUITES[kind.value], _SUITES[kind.value].task
    dataset = bench.at("aime_dataset")
    if kind.value == "aime" and dataset.given:
        task = dataset.text() or task
        if task not in ("aime24", "aime25"):
            dataset.note(LOST, f"lm-eval has aime24 and aime25: {suite.task} is scored")
            task = suite.task
    _client(draft, kind, task, kind.value)
    kind.note(CHANGED, f"lm-eval's {task} scores in place of {suite.by}: near it, and not the same")
    _put(draft, "limit", bench.at("num_examples"))
    _put(draft, "num_fewshot", bench.at("num_shots"), suite.shots)
    _put(draft, "concurrency", bench.at("num_threads"), suite.threads)
    sampling = {name: bench.at(name).number() for name in _SAMPLING if bench.at(name).given}
    _generation(draft, bench.at("max_tokens").integer(least=1) or suite.tokens, sampling)
    repeat = bench.at("repeat").integer(least=1) or suite.repeat
    if repeat > 1:
        at = bench.at("repeat")
        message = "each question is asked once: lm-eval's standard error says how sure the score is"
        at.source.note(CHANGED, at.path, at.value if at.given else f"{repeat} by default", message)


def _lm_eval(bench: Cursor, draft: Draft) -> None:
    """Their lm-eval, which is told in variables."""
    env = bench.at("env")
    tasks = env.at("EVAL_TASKS_DIR")
    stem = posixpath.basename((tasks.text() or "gsm8k.yaml").rstrip("/")).partition(".")[0]
    task = _TASKS.get(stem, "gsm8k")
    _client(draft, bench.at("type"), task, "lm-eval")
    if stem in _TASKS:
        bench.at("type").note(CHANGED, f"lm-eval's own {task}: their file of it has another prompt")
    else:
        tasks.note(
            LOST, f"the tasks of {shown(stem)} are not known, gsm8k is scored: `data` names a folder of your own"
        )
    concurrent = env.at("EVAL_CONC") if env.at("EVAL_CONC").given else env.at("EVAL_CONCURRENT_REQUESTS")
    _put(draft, "concurrency", concurrent, 256)
    _put(draft, "limit", env.at("EVAL_LIMIT"))
    _put(draft, "num_fewshot", env.at("EVAL_NUM_FEWSHOT"))
    _generation(draft, 16384, {"temperature": 0.0, "top_p": 1.0})
    if env.at("VALIDATE_EVAL_SCORES").flag():
        env.at("VALIDATE_EVAL_SCORES").note(LOST, "say the least score that counts in `min`")
        env.at("EVAL_THRESHOLDS").use()
    for name, item in env.items():
        if name in _HOW or name.startswith(_HOW_BEGINS):
            item.note(UNNEEDED, "tools.lm-eval of the profile says which lm-eval runs")
        elif name in _LENGTHS:
            item.note(SET, "the plan tells lm-eval the model and its length")
        elif not name.startswith("EVAL_") and name != "VALIDATE_EVAL_SCORES":
            item.note(UNNEEDED, "it labels their results")


def _client(draft: Draft, kind: Cursor, task: str, name: str) -> None:
    draft.set((*_AT, "client"), "lm-eval", kind)
    draft.set((*_AT, "name"), name)
    draft.set((*_AT, "endpoint"), "chat")
    draft.set((*_AT, "tasks"), [task])


def _put(draft: Draft, field: str, cursor: Cursor, default: int | None = None) -> None:
    value = cursor.integer(least=0 if field == "num_fewshot" else 1, most=1000 if field == "num_fewshot" else 10**6)
    if value is None:
        value = default
    if value is not None:
        draft.set((*_AT, field), value, cursor)


def _generation(draft: Draft, tokens: int, sampling: Mapping[str, float | None]) -> None:
    """As they ask: an answer ends by itself, and not at a word of the task's."""
    draft.set((*_AT, "args", "gen_kwargs", "max_gen_toks"), tokens)
    draft.set((*_AT, "args", "gen_kwargs", "until"), [])
    for name, value in sampling.items():
        if value is not None:
            draft.set((*_AT, "args", "gen_kwargs", name), int(value) if name == "top_k" else value)


READERS: dict[str, Callable[[Cursor, Draft], Any]] = {**dict.fromkeys(_SUITES, _suite), "lm-eval": _lm_eval}
