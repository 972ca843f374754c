"""A foreign file to recipes that our own loader takes, with a note of every key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from recipe_toolkit.document import Document, parse_yaml, read_document
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.faults import Fault, shown
from recipe_toolkit.importers import formats, inferencex, sparkrun, srt, srt_cluster
from recipe_toolkit.importers.draft import difference, write_yaml
from recipe_toolkit.importers.notes import CHANGED, LOST, SKIPPED, Note, note, unique
from recipe_toolkit.importers.profile import ProfileDraft
from recipe_toolkit.importers.reader import Source
from recipe_toolkit.importers.variants import Variant, base_of, ignored_of, variants
from recipe_toolkit.plan.any_site import any_site
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.recipe_loader import LoadedRecipe, load_document

_MOST_REASONS = 50


@dataclass(frozen=True)
class Recipe:
    """One recipe. ``data``: what the file holds; ``base``: the recipe that it extends, by name.

    ``loaded``: the whole recipe, checked. ``notes``: of this variant.
    """

    name: str
    key: str
    data: dict[str, Any]
    document: Document
    loaded: LoadedRecipe
    notes: tuple[Note, ...]
    comments: dict[str, str] = field(default_factory=dict)
    base: str | None = None

    @property
    def whole(self) -> dict[str, Any]:
        """The recipe without a base."""
        return {**self.document.data, "name": self.name}

    def yaml(self, head: str, *, whole: bool = False) -> str:
        """The recipe as commented YAML; ``head`` is its first line, and what is lost is named below it.

        ``whole``: without a base.
        """
        lost = unique(item for item in self.notes if item.kind == LOST)
        lines = [
            head,
            *(f"Lost: {item.field}{f' (line {item.place.line})' if item.place.line else ''}" for item in lost),
        ]
        data = self.whole if whole else self.data
        comments = {key: text for key, text in self.comments.items() if whole or self.base is None or key in data}
        return write_yaml(data, lines, comments)


@dataclass(frozen=True)
class Imported:
    """What came of one file. ``profile``: fields of a cluster profile."""

    file: str
    format: str
    recipes: tuple[Recipe, ...]
    profile: ProfileDraft
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, Any]:
        """What came of it as plain data, the recipes whole."""
        recipes = [{"name": item.name, "selector": item.key, "recipe": item.whole} for item in self.recipes]
        head = {"file": self.file, "ok": True, "format": self.format, "lossless": self.lossless}
        warnings = [problem.to_json() for problem in self.warnings]
        notes = [item.to_json() for item in self.notes]
        return {**head, "recipes": recipes, "profile": self.profile.data, "notes": notes, "problems": warnings}

    @property
    def warnings(self) -> list[Problem]:
        """What our own loader says of the recipes, each once."""
        return sorted({problem for recipe in self.recipes for problem in recipe.loaded.warnings})

    @property
    def lossless(self) -> bool:
        """Whether every key that matters to the run was carried."""
        return not any(item.kind == LOST for item in self.notes)


def import_file(path: Path, selector: str | None = None, document: Document | None = None) -> Imported:
    """Read a file of a known format. ``selector``: which of its variants. ``document``: its text, where it is read.

    Raises InputError: it is of no known format, is refused, or holds nothing that could start.
    """
    document = document or read_document(path)
    kind = formats.format_of(document.data)
    if kind == formats.RECIPE:
        raise InputError([document.problem(Fault((), "is a recipe of this toolkit already", "recipe validate FILE"))])
    reader = _READERS.get(kind or "")
    if reader is None or kind is None:
        known = "srt-slurm's recipes and cluster file, InferenceX's master file, sparkrun's recipes"
        raise InputError([*document.problems, document.problem(Fault((), "is of no format that is known", known))])
    return reader(document, kind, selector)


def _import_srt(document: Document, kind: str, selector: str | None) -> Imported:
    if any(problem.refuses for problem in document.problems):
        raise InputError(document.problems)
    profile, recipes = ProfileDraft(), []
    beside = "stands beside `base`, and is part of no variant"
    notes = [
        note(LOST, document.locate((key,), key=True), (key,), document.data[key], beside)
        for key in ignored_of(document)
    ]
    for variant in _with_base(document, selector):
        try:
            one = srt.convert(Source(variant.of))
            recipe = _finish(one, variant.key)
        except _Infeasible as error:
            if not variant.swept:
                raise InputError(error.problems) from error
            place = document.locate(("sweep",))
            notes.append(note(SKIPPED, place, ("sweep",), variant.key, error.problems[0].message))
            continue
        except InputError:
            if variant.key == "base" and selector != "base":
                continue  # a base need not be whole; its variants then stand alone
            raise
        profile.merge(one.profile)
        recipes.append(recipe)
        notes += recipe.notes
    if not recipes:
        raise InputError([document.problem(Fault(("sweep",), "no combination of the sweep could start", key=True))])
    return Imported(document.file, kind, _related(recipes), profile, tuple(unique(notes)))


class _Infeasible(Exception):
    """Sizes that do not fit the GPUs of the file; a sweep leaves such combinations out."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self.problems = problems


def _with_base(document: Document, selector: str | None) -> Iterator[Variant]:
    found = variants(document, selector)
    base = base_of(document)
    if base is not None and len(found) > 1 and all(variant.key != "base" for variant in found):
        yield Variant("base", base)
    yield from found


def _finish(one: srt.Import, key: str) -> Recipe:
    """Check what was made by our own loader and planner; a problem is told at the line that it comes from."""
    problems = [problem for problem in one.source.problems if problem.refuses]
    if one.infeasible and len(problems) == 1:
        raise _Infeasible(problems)
    one.source.refuse()
    document = one.draft.document()
    loaded = load_document(document)
    try:
        plan = build_plan(loaded.recipe, any_site(loaded.recipe))
    except InputError as error:
        raise InputError([loaded.place(item) if item.file == "recipe" else item for item in error.problems]) from error
    notes = list(one.source.notes)
    if one.nodes is not None and one.nodes != len(plan.nodes):
        at = ("resources",) if one.source.root.at("resources").given else ("roles",)
        place = one.source.document.locate(at, key=True)
        message = f"{one.nodes} nodes are allocated there for the engines; the plan takes {len(plan.nodes)}"
        notes.append(note(CHANGED, place, at, None, message))
    data, comments = one.draft.data, dict(one.draft.comments)
    recipe = Recipe(loaded.recipe.name, key, data, one.draft.document(), loaded, tuple(unique(notes)), comments)
    _check_text(recipe)
    return recipe


def _check_text(recipe: Recipe) -> None:
    """Read what would be written: it must say the same. JSON within a string may hold what YAML cannot."""
    document = recipe.document
    try:
        read = parse_yaml(recipe.yaml(""), document.file)
        problems = [problem.message for problem in read.problems]
    except (InputError, yaml.YAMLError) as error:
        problems = [str(error)]
    if problems or read.data != recipe.data:
        message = f"cannot be written as a recipe: {problems[0] if problems else 'its text reads otherwise'}"
        raise InputError([document.problem(Fault((), message))])


def _related(recipes: list[Recipe]) -> tuple[Recipe, ...]:
    """Several recipes of one file: the first one whole, the others as what differs from it."""
    first, *others = _named(recipes)
    related = [first]
    for recipe in others:
        data = difference(first.data, recipe.data)
        related.append(replace(recipe, data={"schema": 1, **data, "extends": f"{first.name}.yaml"}, base=first.name))
    return tuple(related)


def _named(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Whole, each under a name of its own."""
    seen: dict[str, int] = {}
    named = []
    for recipe in recipes:
        count = seen[recipe.name] = seen.get(recipe.name, 0) + 1
        name = recipe.name if count == 1 else f"{recipe.name[:70]}-{count}"
        named.append(replace(recipe, name=name, data={**recipe.document.data, "name": name}, base=None))
    return named


def _import_master(document: Document, kind: str, selector: str | None) -> Imported:
    """Each file that InferenceX's entries name; its recipes are not related to those of the other files."""
    done, notes = inferencex.entries(document, selector, _import_srt)
    if not done:
        reasons = [item.problem() for item in unique(notes) if item.kind == LOST][:_MOST_REASONS]
        errors = [replace(item, severity="error") for item in reasons]
        raise InputError(errors or [document.problem(Fault((), f"has no entry {shown(selector)}"))])
    profile = ProfileDraft()
    for one in done:
        profile.merge(one.profile)
        notes += one.notes
    recipes = tuple(_named([recipe for one in done for recipe in one.recipes]))
    return Imported(document.file, kind, recipes, profile, tuple(unique(notes)))


def _import_cluster(document: Document, kind: str, selector: str | None) -> Imported:
    if any(problem.refuses for problem in document.problems):
        raise InputError(document.problems)
    if selector is not None:
        raise InputError([document.problem(Fault((), f"has no variant {shown(selector)}"))])
    profile, notes = srt_cluster.read_cluster(document)
    return Imported(document.file, kind, (), profile, tuple(unique(notes)))


def _import_sparkrun(document: Document, kind: str, selector: str | None) -> Imported:
    if any(problem.refuses for problem in document.problems):
        raise InputError(document.problems)
    if selector is not None:
        raise InputError([document.problem(Fault((), f"has no variant {shown(selector)}"))])
    one = sparkrun.convert(document)
    recipe = _finish(one, "")
    return Imported(document.file, kind, (recipe,), one.profile, recipe.notes)


_READERS: dict[str, Callable[[Document, str, str | None], Imported]] = {
    formats.SRT1: _import_srt,
    formats.SRT2: _import_srt,
    formats.SRT_CLUSTER: _import_cluster,
    formats.INFERENCEX: _import_master,
    formats.SPARKRUN: _import_sparkrun,
}
