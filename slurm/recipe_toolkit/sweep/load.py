"""The recipes of a sweep, each through the whole loader; the problems of all of them at once."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from recipe_toolkit.document import Document, Place
from recipe_toolkit.errors import InputError, Problem, Severity
from recipe_toolkit.faults import FieldPath, did_you_mean, dotted
from recipe_toolkit.feasibility import check_recipe
from recipe_toolkit.overrides import Refused, put
from recipe_toolkit.recipe_data import recipe_data
from recipe_toolkit.recipe_loader import LoadedRecipe, load_document
from recipe_toolkit.schema_check import load_schema, takes_only
from recipe_toolkit.sweep.expand import Setting, Variant, variants
from recipe_toolkit.sweep.merge import merged
from recipe_toolkit.sweep.names import joined, name_of_variant

_SHOWN = 1


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep: the variants that share a deployment.

    ``base``: the name of the recipe that holds the sweep. ``points``: of each variant, by index in the plan.
    ``digests``: of each variant; the same for the same resolved recipe.
    """

    base: str
    id: str
    recipe: LoadedRecipe
    variants: tuple[Variant, ...]
    points: tuple[tuple[int, ...], ...]
    digests: tuple[str, ...]


class Findings:
    """What is wrong with the variants of a sweep, each problem once."""

    def __init__(self) -> None:
        self._by: dict[tuple[Any, ...], tuple[Problem, list[str]]] = {}

    def add(self, of: Iterable[str], problems: Iterable[Problem]) -> None:
        """Note the problems of variants."""
        for item in problems:
            key = (item.file, item.line, item.column, item.field, item.message, item.severity)
            self._by.setdefault(key, (item, []))[1].extend(of)

    def problems(self, count: int) -> list[Problem]:
        """Each problem, with the variants that have it where not all of ``count`` do."""
        found = []
        for problem, of in self._by.values():
            names = list(dict.fromkeys(of))
            if len(names) < count:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                said = f"{problem.message} (in {', '.join(names[:_SHOWN])}{more})"
                problem = replace(problem, message=said)
            found.append(problem)
        return sorted(found)


def chosen(loaded: LoadedRecipe, only: str | None, left: Collection[str] | None = None) -> list[Variant]:
    """The variants that are meant: all, or those whose id matches the pattern, or is among those that are left.

    Raises InputError.
    """
    found = variants(loaded.document)
    if left is not None:
        return [variant for variant in found if variant.id in left]
    if only is None:
        return found
    meant = [variant for variant in found if fnmatchcase(variant.id, only)]
    if not meant:
        ids = [variant.id for variant in found]
        hint = did_you_mean(only, ids) or f"the ids are {', '.join(ids[:8])}{', …' if len(ids) > 8 else ''}"
        raise InputError([Problem(loaded.document.file, 0, 0, "sweep", f"no variant matches {only!r}", hint)])
    return meant


def load_sweep(loaded: LoadedRecipe, meant: Sequence[Variant], findings: Findings) -> list[SweptRun]:
    """The runs of the variants that are right, in their order; what is wrong with the others goes to ``findings``."""
    groups: dict[str, list[tuple[Variant, LoadedRecipe]]] = {}
    _lost_sets(loaded.document, meant, findings)
    for variant in meant:
        try:
            recipe = load_document(_document(loaded.document, variant))
        except InputError as error:
            findings.add([variant.id], error.problems)
            continue
        findings.add([variant.id], recipe.warnings)
        deployed = {key: value for key, value in recipe.data.items() if key != "benchmarks"}
        groups.setdefault(_digest(deployed), []).append((variant, recipe))
    ids = _run_ids(list(groups.values()))
    return [_run(name, group, findings) for name, group in zip(ids, groups.values(), strict=True)]


def _lost_sets(base: Document, meant: Sequence[Variant], findings: Findings) -> None:
    """Note each ``--set`` of which nothing is left where the sweep sets the same field: in some variants, or in all."""
    given = {path: place for path, place in base.values.items() if place.file.startswith("--set ")}
    lost: dict[tuple[Place, FieldPath], list[str]] = {}
    for variant in meant if given else ():
        swept = [setting.path for setting in variant.settings]
        for path, place in given.items():
            if any(path[: len(over)] == over for over in swept):
                lost.setdefault((place, path), []).append(variant.id)
    for (place, path), of in lost.items():
        whole = len(of) == len(meant)
        hint = "--only chooses variants; `--set sweep=null` leaves the sweep out" if whole else None
        message = "the sweep sets this field itself, and over it"
        severity: Severity = "error" if whole else "warning"
        findings.add(of, [Problem(*place, dotted(path), message, hint, severity)])


def _document(base: Document, variant: Variant) -> Document:
    """The recipe with the variant's values, which keep the places where the sweep says them."""
    data = {key: copy.deepcopy(value) for key, value in base.data.items() if key != "sweep"}
    document = Document(base.file, data, dict(base.keys), dict(base.values))
    for setting in variant.settings:
        try:
            put(document, setting.path, _value(base, setting))
        except Refused as refused:
            # Where the value stands is known; the fault is of what it would be put into.
            problem = base.problem(replace(refused.fault, path=setting.place, key=False))
            document.problems.append(replace(problem, field=".".join(map(str, setting.path))))
    return document


def _value(base: Document, setting: Setting) -> Document:
    value = Document(base.file, copy.deepcopy(setting.value))
    value.graft((), base, setting.place)
    if not isinstance(value.data, (list, type(None))) and _holds_a_list(base, setting.path):
        value = Document(base.file, [value.data], {}, {(): value.locate(()), (0,): value.locate(())})
    return value


def _holds_a_list(base: Document, path: FieldPath) -> bool:
    """Whether the recipe has a list there, or nothing but one could stand there."""
    holder: Any = base.data
    for part in path:
        try:
            holder = holder[part]
        except (KeyError, IndexError, TypeError):
            return takes_only("array", load_schema("recipe"), path)
    return isinstance(holder, list)


def _run_ids(groups: Sequence[Sequence[tuple[Variant, LoadedRecipe]]]) -> list[str]:
    """What its variants have in common names a run, as long as no other has that; else its first variant."""
    shared = []
    for group in groups:
        axes = zip(*(variant.choices for variant, _ in group), strict=True)
        labels = [{choice.label for choice in axis} for axis in axes]
        shared.append(joined([next(iter(found)) for found in labels if len(found) == 1]))
    return [
        name if name and shared.count(name) == 1 else group[0][0].id for name, group in zip(shared, groups, strict=True)
    ]


def _run(name: str, group: Sequence[tuple[Variant, LoadedRecipe]], findings: Findings) -> SweptRun:
    first = group[0][1]
    benchmarks, points = merged([(variant, loaded.recipe.benchmarks) for variant, loaded in group])
    recipe = replace(first.recipe, name=name_of_variant(first.recipe.name, name), benchmarks=benchmarks)
    if len(group) > 1:  # the run holds more than each of its variants, which have been checked
        faults = [fault for fault in check_recipe(recipe, []) if fault.refuses]
        findings.add([variant.id for variant, _ in group], [first.document.problem(fault) for fault in faults])
    loaded = LoadedRecipe(recipe, recipe_data(recipe), first.warnings, first.document)
    digests = tuple(_digest(item.data) for _, item in group)
    return SweptRun(first.recipe.name, name, loaded, tuple(variant for variant, _ in group), tuple(points), digests)


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
