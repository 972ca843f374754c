"""The results of lm-evaluation-harness, in our names (read in ``lm_eval/loggers/evaluation_tracker.py``, 0.4.13).

It writes ``lm_eval_TIME.json`` with a mean and its standard error for each task, metric and filter, and
``samples_TASK_TIME.jsonl`` with each answer, once for each filter. It ends with an exit code when a request failed for
good, and counts an answer that is empty as a wrong one. Scores of a group of tasks stand among those of its tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.results.figures import Figures
from recipe_toolkit.results.model import Requests, Score, number

RESULTS = "lm_eval_*.json"
SAMPLES = "samples_*.jsonl"
# The filter that takes the answer wherever it stands; strict-match asks for a format besides.
_PREFERRED = "flexible-extract"
_ENDPOINTS = {"local-completions": "completions", "local-chat-completions": "chat"}
_NO_METRIC = ("alias", "name", "sample_len", "samples")
# An answer that ran out of tokens may be empty now and then; it is counted as wrong, as elsewhere.
_EMPTY_TOLERANCE = 0.01
_BYTES = 256 * 1024 * 1024


def read_lm_eval(folder: Path) -> Figures:
    """What it scored, from the artifacts in ``folder``; never raises on bad files, the faults say why."""
    data, fault = _read(folder)
    if data is None:
        return Figures(faults=(fault,))
    counts = _counted(data)
    scores = tuple(_scores(data, counts))
    answers, faults = _answers(folder, counts)
    if not scores:
        faults.append("lm_eval wrote no score")
    empty = sum(item.empty for item in answers.values())
    total = sum(item.answers for item in answers.values())
    notes = [f"{counts[name][0]} of the {counts[name][1]} documents of {name}" for name in _partial(counts)]
    if empty:
        said = f"{empty} of {total} answers are empty, and counted as wrong"
        (faults if empty > total * _EMPTY_TOLERANCE else notes).append(said)
    config = _mapping(data, "config")
    version = data.get("lm_eval_version")
    return Figures(
        version=version if isinstance(version, str) else None,
        endpoint=_ENDPOINTS.get(str(config.get("model"))),
        requests=Requests(ok=total, failed=0),
        duration_s=None,
        accuracy=scores,
        faults=tuple(faults),
        notes=tuple(notes),
    )


def _read(folder: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        found = sorted(folder.glob(RESULTS))
        if not found:
            return None, f"the client wrote no {RESULTS}"
        if found[-1].stat().st_size > _BYTES:
            return None, f"{found[-1].name} is larger than {_BYTES} bytes"
        data = json.loads(found[-1].read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{RESULTS} cannot be read: {error}"
    if not isinstance(data, dict):
        return None, f"{found[-1].name} holds no JSON object"
    return data, ""


def _mapping(data: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    found: Any = data
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _counted(data: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """By task: documents that were asked, and that there are."""
    counts = {}
    for task in _mapping(data, "n-samples"):
        said = _mapping(data, "n-samples", task)
        asked, there = number(said.get("effective")), number(said.get("original"))
        if asked is not None and there is not None:
            counts[str(task)] = (round(asked), round(there))
    return counts


def _partial(counts: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    yield from (task for task, (asked, there) in counts.items() if asked < there)


def _scores(data: Mapping[str, Any], counts: Mapping[str, tuple[int, int]]) -> Iterator[Score]:
    for task in _mapping(data, "results"):
        said = _mapping(data, "results", task)
        rows = [
            (metric, name, value)
            for key in said
            if (metric := str(key).partition(",")[0]) not in _NO_METRIC and not metric.endswith("_stderr")
            if (value := number(said[key])) is not None
            for name in [str(key).partition(",")[2] or "none"]
        ]
        main = _main(rows)
        samples = sum(counts[item][0] for item in _members(data, str(task)) if item in counts)
        for metric, name, value in rows:
            higher = _mapping(data, "higher_is_better", task).get(metric)
            shots, version = number(_mapping(data, "n-shot").get(task)), _mapping(data, "versions").get(task)
            percent = higher is not False and 0 <= value <= 1
            stderr = number(said.get(f"{metric}_stderr,{name}"))
            scale = 100 if percent else 1
            yield Score(
                task=str(task),
                metric=metric,
                filter=name,
                score=value * scale,
                unit="%" if percent else "",
                stderr=None if stderr is None else stderr * scale,
                samples=samples or None,
                higher_is_better=higher is not False,
                task_version=None if version is None else str(version),
                num_fewshot=None if shots is None else round(shots),
                main=(metric, name) == main,
            )


def _members(data: Mapping[str, Any], group: str) -> set[str]:
    """The tasks of a group, those of the groups inside it too; of a task itself alone."""
    found, left = set(), [group]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            inner = _mapping(data, "group_subtasks").get(name)
            left += [str(item) for item in inner] if isinstance(inner, list) else []
    return found


def _main(rows: list[tuple[str, str, float]]) -> tuple[str, str] | None:
    """The task's first metric, with the filter that takes the answer wherever it stands."""
    if not rows:
        return None
    metric = rows[0][0]
    filters = [name for other, name, _ in rows if other == metric]
    return metric, _PREFERRED if _PREFERRED in filters else filters[0]


@dataclass
class _Answers:
    """Of one task: documents, answers to them, and how many say nothing."""

    documents: int = 0
    answers: int = 0
    empty: int = 0


def _answers(folder: Path, counts: Mapping[str, tuple[int, int]]) -> tuple[dict[str, _Answers], list[str]]:
    """What the samples say, by task; line by line, since each holds its document."""
    found: dict[str, _Answers] = {}
    faults = []
    for task, (asked, _) in counts.items():
        paths = sorted(folder.glob(SAMPLES.replace("*", f"{_literal(task)}_20*")))
        if not paths:
            faults.append(f"the client wrote no samples of {task}")
            continue
        try:
            found[task], bad = _count(paths[-1])
        except OSError as error:
            faults.append(f"{paths[-1].name} cannot be read: {error}")
            continue
        if bad:
            faults.append(f"{paths[-1].name}: {bad} lines are no samples")
        if found[task].documents != asked:
            faults.append(f"{task}: {asked} documents were asked, and the samples hold {found[task].documents}")
    return found, faults


def _literal(name: str) -> str:
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def _count(path: Path) -> tuple[_Answers, int]:
    seen: set[Any] = set()
    found, bad = _Answers(), 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                sample = json.loads(line)
                document, answers = sample["doc_id"], sample["resps"]
                if document in seen:
                    continue  # the same answers, by another filter
                seen.add(document)
            except (ValueError, KeyError, TypeError, RecursionError):
                bad += bool(line.strip())
                continue
            found.documents += 1
            # A list of repeats where it generated, a list for each choice where it compared likelihoods.
            flat = [item for row in answers for item in (row if isinstance(row, list) else [row])]
            found.answers += len(flat)
            found.empty += sum(isinstance(item, str) and not item.strip() for item in flat)
    return found, bad
