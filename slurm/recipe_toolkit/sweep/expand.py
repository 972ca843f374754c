"""``sweep`` to its variants: axes multiplied, pruned by ``where``, each with an id made of its values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.document import Document
from recipe_toolkit.errors import InputError
from recipe_toolkit.faults import Fault, FieldPath, did_you_mean, dotted, overlaps
from recipe_toolkit.overrides import Refused, find_field
from recipe_toolkit.schema_check import load_schema, subschemas
from recipe_toolkit.sweep.expression import Expression, ExpressionError
from recipe_toolkit.sweep.names import joined, short_keys, value_labels

MOST_COMBINATIONS = 10_000
MOST_VARIANTS = 1000

_NOT_SWEPT = {
    "schema": "it is the version of the format",
    "name": "each variant's name is made of the recipe's and its id",
    "extends": "bases are merged before the sweep is read",
    "sweep": "a sweep cannot sweep itself",
    "tune": "it says what recipe tune measures",
}


@dataclass(frozen=True)
class Setting:
    """A value for a field. ``place``: where in the recipe the value stands."""

    path: FieldPath
    value: Any
    place: FieldPath

    @property
    def of_benchmarks(self) -> bool:
        """Whether it changes what is measured, and not what is deployed."""
        return self.path[0] == "benchmarks"


@dataclass(frozen=True)
class Choice:
    """One of the values of an axis. ``columns``: what a table shows of it, by short key."""

    label: str
    settings: tuple[Setting, ...]
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """A combination of choices, one of each axis. ``id``: unique in the sweep, and safe in file names."""

    id: str
    choices: tuple[Choice, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every field that it sets."""
        return tuple(setting for choice in self.choices for setting in choice.settings)

    @property
    def values(self) -> dict[str, Any]:
        """Every field that it sets, as ``--set`` names it."""
        return {dotted(setting.path): setting.value for setting in self.settings}

    @property
    def columns(self) -> dict[str, Any]:
        """What differs, for tables: swept fields by short keys, and ``variant`` with its name."""
        return {key: value for choice in self.choices for key, value in choice.columns.items()}


def variants(document: Document) -> list[Variant]:
    """The variants of a recipe, in the order of writing: the last axis changes fastest.

    ``document``: a recipe that the loader has accepted, with ``sweep``. Raises InputError with every fault.
    """
    reader = _Reader(document)
    axes = reader.axes()
    if not axes:
        reader.fault((), "has nothing to vary", "grid, zip or variants")
    count = math.prod(len(axis) for axis in axes)
    if count > MOST_COMBINATIONS:
        reader.fault((), f"{count} combinations are more than {MOST_COMBINATIONS}", "fewer values, or zip some")
    condition = reader.condition()
    reader.refuse()
    combined = [Variant(joined([choice.label for choice in item]), item) for item in itertools.product(*axes)]
    found = reader.pruned(combined, condition) if condition is not None else combined
    reader.refuse()
    if not found:
        reader.fault(("where",), f"holds for none of the {count} combinations")
    elif len(found) > MOST_VARIANTS:
        reader.fault((), f"{len(found)} variants are more than {MOST_VARIANTS}", "fewer values, or a `where`")
    reader.refuse()
    return found


_Fields = Mapping[str, FieldPath]


class _Reader:
    """Reads ``sweep``; faults are collected."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._sweep: Mapping[str, Any] = document.data["sweep"]
        self._faults: list[Fault] = []

    def fault(self, at: FieldPath, message: str, hint: str | None = None) -> None:
        """Note what is wrong with a part of the sweep."""
        self._faults.append(Fault(("sweep", *at), message, hint, key=at != ("where",)))

    def refuse(self) -> None:
        """Raise InputError if anything is wrong so far."""
        if self._faults:
            raise InputError([self._document.problem(fault) for fault in self._faults])

    def axes(self) -> list[list[Choice]]:
        """The axes: each field of ``grid``, each group of ``zip``, and the named variants."""
        grid, groups = self._sweep.get("grid", {}), self._sweep.get("zip", [])
        named: Mapping[str, Any] = self._sweep.get("variants", {})
        read: list[dict[str, FieldPath]] = [
            *({field: self._field(field, ("grid", field))} for field in grid),
            *({field: self._field(field, ("zip", at, field)) for field in group} for at, group in enumerate(groups)),
        ]
        own = {
            name: {field: self._field(field, ("variants", name, field)) for field in fields}
            for name, fields in named.items()
        }
        self._overlapping(read, own)
        keys = short_keys({path for axis in read for path in axis.values()})
        axes = []
        for index, paths in enumerate(read):
            lists = grid if index < len(grid) else groups[index - len(grid)]
            at: FieldPath = ("grid",) if index < len(grid) else ("zip", index - len(grid))
            axes.append(self._zipped({field: lists[field] for field in paths}, paths, keys, at))
        if named:
            axes.append([self._named(name, named[name], paths) for name, paths in own.items()])
        return axes

    def _named(self, name: str, values: Mapping[str, Any], paths: Mapping[str, FieldPath]) -> Choice:
        places = {field: ("sweep", "variants", name, field) for field in values}
        settings = tuple(Setting(paths[field], value, places[field]) for field, value in values.items())
        return Choice(name, settings, {"variant": name})

    def _field(self, text: str, at: FieldPath) -> FieldPath:
        try:
            path = find_field(self._document.data, text)
        except Refused as refused:
            self.fault(at, refused.fault.message, refused.fault.hint)
            return (text,)
        if path[0] in _NOT_SWEPT:
            self.fault(at, f"{path[0]} cannot be swept: {_NOT_SWEPT[str(path[0])]}")
        return path

    def _overlapping(self, axes: Sequence[_Fields], named: Mapping[str, _Fields]) -> None:
        """Fault fields that are set twice in one variant: one of the values would be lost."""
        fields: list[tuple[str | None, str, FieldPath]] = [
            *((None, field, path) for axis in axes for field, path in axis.items()),
            *((name, field, path) for name, paths in named.items() for field, path in paths.items()),
        ]
        for (one, first, path), (other, second, further) in itertools.combinations(fields, 2):
            apart = one is not None and other is not None and one != other
            if not apart and overlaps(path, further):
                both = first if first == second else f"{first} and {second}"
                self.fault((), f"{both}: set twice in one variant", "sweep it in one place; zip what changes together")
                return

    def _zipped(
        self,
        lists: Mapping[str, Sequence[Any]],
        paths: Mapping[str, FieldPath],
        keys: Mapping[FieldPath, str],
        at: FieldPath,
    ) -> list[Choice]:
        """The choices of fields that change together; of one field alone where it is the grid's."""
        sizes = {len(values) for values in lists.values()}
        if len(sizes) > 1:
            said = ", ".join(f"{field} {len(values)}" for field, values in lists.items())
            self.fault(at, f"lists of a group are of one length, and these are of {said}")
            return []
        labels = {field: value_labels(values) for field, values in lists.items()}
        choices, seen = [], set()
        for index in range(sizes.pop()):
            parts = [f"{keys[paths[field]]}-{labels[field][index]}" for field in lists]
            settings = tuple(
                Setting(paths[field], values[index], ("sweep", *at, field, index)) for field, values in lists.items()
            )
            columns = {keys[paths[field]]: values[index] for field, values in lists.items()}
            choice = Choice(joined(parts), settings, columns)
            if choice.label in seen:
                self.fault((*at, next(iter(lists)), index), f"{choice.label} stands twice")
            seen.add(choice.label)
            choices.append(choice)
        return choices

    def condition(self) -> Expression | None:
        """``where``, whose fields the schema knows."""
        text = self._sweep.get("where")
        if text is None:
            return None
        try:
            found = Expression(text)
        except ExpressionError as error:
            self.fault(("where",), str(error), error.hint)
            return None
        for path in found.fields():
            self._known(path)
        return found

    def _known(self, path: FieldPath) -> None:
        root = load_schema("recipe")
        for depth in range(1, len(path) + 1):
            if not subschemas(root, path[:depth]):
                known = {name for part in subschemas(root, path[: depth - 1]) for name in part.get("properties", {})}
                hint = did_you_mean(str(path[depth - 1]), known) or "fields are named from the recipe's top on"
                self.fault(("where",), f"no field {dotted(path)}", hint)
                return

    def pruned(self, combined: Sequence[Variant], condition: Expression) -> list[Variant]:
        """The variants for which the condition holds; that it has no value is told of the first alone."""
        found = []
        for variant in combined:
            try:
                if condition.holds(lambda path, of=variant: self._value(path, of)):  # type: ignore[misc]
                    found.append(variant)
            except ExpressionError as error:
                self.fault(("where",), f"{error}, in {variant.id}", error.hint)
                break
        return found

    def _value(self, path: FieldPath, variant: Variant) -> Any:
        """What a field holds in a variant: its own value, the recipe's, or the default."""
        value, rest = self._document.data, path
        for setting in variant.settings:
            if path[: len(setting.path)] == setting.path:
                value, rest = setting.value, path[len(setting.path) :]
            elif setting.path[: len(path)] == path:
                raise ExpressionError(f"{dotted(path)} holds fields that are swept", "name one of them")
        for part in rest:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                value = None
                break
        if value is not None:
            return value
        return next(_defaults(path), None)


def _defaults(path: FieldPath) -> Iterator[Any]:
    yield from (part["default"] for part in subschemas(load_schema("recipe"), path) if "default" in part)
