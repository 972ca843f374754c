"""The variants that one file of srt-slurm stands for.

``base`` with ``override_NAME`` (merged over it, null deletes) and ``zip_override_NAME`` (one variant for
each item of its lists, side by side); ``sweep`` (each combination of its values in the places
``{NAME}``). Facts: srt-slurm's ``docs/overrides.md`` and ``docs/sweeps.md``.
"""

from __future__ import annotations

import copy
import fnmatch
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.document import Document
from recipe_toolkit.errors import InputError
from recipe_toolkit.faults import Fault, FieldPath, shown

MOST_VARIANTS = 500
_OVERRIDE, _ZIP = "override_", "zip_override_"
_MOST_NAMED = 12
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LOADS: FieldPath = ("benchmark", "concurrencies")


@dataclass(frozen=True)
class Variant:
    """One recipe of a file. ``key``: what selects it. ``of``: the document, merged and filled in.

    ``section``: the key of its override. ``swept``: whether it is one combination of a sweep.
    """

    key: str
    of: Document
    section: str = ""
    swept: bool = False


def variants(document: Document, selector: str | None = None) -> list[Variant]:
    """All variants that the selector names (without one: all but the base). Raises InputError.

    A selector is srt-slurm's: the key of a section, with ``[N]`` for one of a zip, or with ``*``; or the
    values of a sweep's combination as they stand in the variant's key.
    """
    found = [item for variant in _overridden(document, selector == "base") for item in _swept(variant)]
    chosen = [variant for variant in found if selector is None or _selects(selector, variant)]
    if not chosen:
        keys = [variant.key for variant in found if variant.key]
        hint = f"one of: {'; '.join(keys[:_MOST_NAMED])}{'; …' if len(keys) > _MOST_NAMED else ''}" if keys else None
        raise InputError([document.problem(Fault((), f"has no variant {shown(selector)}", hint))])
    if len(chosen) > MOST_VARIANTS:
        message = f"stands for {len(chosen)} recipes, more than {MOST_VARIANTS}"
        raise InputError([document.problem(Fault((), message, "choose some: FILE:KEY, or fewer values in sweep"))])
    return chosen


def _selects(selector: str, variant: Variant) -> bool:
    """``[`` is no pattern here: it counts the variants of a zip."""
    plain = selector.replace("[", "[[]")
    return any(selector == name or fnmatch.fnmatchcase(name, plain) for name in (variant.key, variant.section))


def ignored_of(document: Document) -> list[str]:
    """Keys beside a base that are no part of any variant."""
    if base_of(document) is None:
        return []
    return [key for key in document.data if key not in ("base", "schema") and not key.startswith((_OVERRIDE, _ZIP))]


def base_of(document: Document) -> Document | None:
    """The base of a file with overrides."""
    data = document.data
    return _part(document, "base") if isinstance(data, dict) and isinstance(data.get("base"), dict) else None


def _overridden(document: Document, the_base: bool) -> Iterator[Variant]:
    base = base_of(document)
    keys = [key for key in document.data if key.startswith((_OVERRIDE, _ZIP))] if base is not None else []
    if base is None:
        yield Variant("", document)
    elif the_base or not keys:
        yield Variant("base", base, "base")
    for key in keys:
        over = _part(document, key)
        if not isinstance(over.data, dict):
            raise InputError([document.problem(Fault((key,), f"{shown(over.data)} is not a mapping"))])
        several = _zipped(over, document, key) if key.startswith(_ZIP) else [over]
        for number, one in enumerate(several):
            yield _variant(base or document, one, key, number if key.startswith(_ZIP) else None)


def _variant(base: Document, over: Document, key: str, number: int | None) -> Variant:
    suffix = key.removeprefix(_ZIP if number is not None else _OVERRIDE)
    merged = _copy(base)
    _merge(merged, over, merged.data, over.data, ())
    if "name" not in over.data and isinstance(base.data.get("name"), str):
        merged.data["name"] = "_".join(str(part) for part in (base.data["name"], suffix, number) if part is not None)
    return Variant(key if number is None else f"{key}[{number}]", merged, key)


def _part(document: Document, key: str) -> Document:
    """A section of the document as a document, with the file's own ``schema``."""
    part = Document(document.file, copy.deepcopy(document.data[key]), problems=list(document.problems))
    part.graft((), document, (key,))
    schema = document.data.get("schema")
    if schema is not None and isinstance(part.data, dict) and key == "base":
        part.data.setdefault("schema", schema)
    return part


def _copy(document: Document) -> Document:
    keys, values = dict(document.keys), dict(document.values)
    return Document(document.file, copy.deepcopy(document.data), keys, values, list(document.problems))


def _merge(into: Document, over: Document, base: dict[str, Any], data: dict[str, Any], path: FieldPath) -> None:
    for key, value in data.items():
        at = (*path, key)
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(into, over, base[key], value, at)
        else:
            base[key] = copy.deepcopy(value)
            into.drop(at)
            into.graft(at, over, at)


def _zipped(over: Document, document: Document, key: str) -> Iterator[Document]:
    lengths = {length for length in _lengths(over.data) if length != 1}
    if len(lengths) > 1:
        message = f"its lists have {' and '.join(map(str, sorted(lengths)))} items: they must be as long as each other"
        raise InputError([document.problem(Fault((key,), message, key=True))])
    for number in range(min(lengths.pop() if lengths else 1, MOST_VARIANTS + 1)):
        one = _copy(over)
        one.data = _slice(over.data, number)
        yield one


def _lengths(data: Any) -> Iterator[int]:
    if isinstance(data, dict):
        for value in data.values():
            yield from _lengths(value)
    elif isinstance(data, list):
        yield len(data)


def _slice(data: Any, number: int) -> Any:
    if isinstance(data, dict):
        return {key: _slice(value, number) for key, value in data.items()}
    if isinstance(data, list):
        return copy.deepcopy(data[0 if len(data) == 1 else number]) if data else None
    return data


def _swept(variant: Variant) -> Iterator[Variant]:
    document = variant.of
    sweep = document.data.get("sweep") if isinstance(document.data, dict) else None
    if not isinstance(sweep, dict):
        yield variant
        return
    del document.data["sweep"]
    values = {name: list(_values(document, name, sweep[name])) for name in sweep}
    loads = _of_loads_alone(document.data, values)
    for name in loads:
        document.data["benchmark"]["concurrencies"] = _loads(
            document.data["benchmark"]["concurrencies"], values[name], name
        )
        del values[name]
    number = 1
    for items in values.values():
        number *= len(items)
    if number > 100 * MOST_VARIANTS:
        message = f"{number} combinations are more than can be looked through"
        raise InputError([document.problem(Fault(("sweep",), message, "fewer values"))])
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        yield _filled(variant, chosen)


def _values(document: Document, name: str, values: Any) -> Iterator[Any]:
    if not isinstance(values, list) or not values:
        raise InputError([document.problem(Fault(("sweep", name), f"{shown(values)} is not a list of values"))])
    if any(isinstance(value, dict) for value in values):
        raise InputError([document.problem(Fault(("sweep", name), "a value of a sweep cannot be a mapping"))])
    yield from values


def _of_loads_alone(data: Any, values: Mapping[str, Any]) -> list[str]:
    """Names that stand nowhere but for a whole number in flight: one deployment measures them all."""
    bench = data.get("benchmark")
    loads = bench.get("concurrencies") if isinstance(bench, dict) else None
    items = loads if isinstance(loads, list) else [loads]
    rest = copy.deepcopy(data)
    if isinstance(bench, dict):
        rest["benchmark"].pop("concurrencies", None)
    elsewhere = set(_placeholders(rest))
    return [name for name in values if items.count(f"{{{name}}}") == 1 and name not in elsewhere]


def _placeholders(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for value in data.values():
            yield from _placeholders(value)
    elif isinstance(data, list):
        for value in data:
            yield from _placeholders(value)
    elif isinstance(data, str):
        yield from _PLACEHOLDER.findall(data)


def _loads(loads: Any, values: list[Any], name: str) -> list[Any]:
    items = loads if isinstance(loads, list) else [loads]
    return [value for item in items for value in (values if item == f"{{{name}}}" else [item])]


def _filled(variant: Variant, chosen: Mapping[str, Any]) -> Variant:
    one = _copy(variant.of)
    name = one.data.get("name")
    one.data = _fill(one.data, chosen)
    label = "-".join(f"{key}{_word(value)}" for key, value in chosen.items())
    if label and one.data.get("name") == name and isinstance(name, str):
        one.data["name"] = f"{name}-{label}"
    values = ",".join(f"{key}={_word(value)}" for key, value in chosen.items())
    return Variant(" ".join(part for part in (variant.key, values) if part), one, variant.section, bool(chosen))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fill(data: Any, chosen: Mapping[str, Any]) -> Any:
    """A string that is one placeholder takes the value with its type; within other text it is text."""
    if isinstance(data, dict):
        return {key: _fill(value, chosen) for key, value in data.items()}
    if isinstance(data, list):
        return [_fill(value, chosen) for value in data]
    if isinstance(data, str):
        whole = _PLACEHOLDER.fullmatch(data)
        if whole and whole[1] in chosen:
            return copy.deepcopy(chosen[whole[1]])
        return _PLACEHOLDER.sub(lambda match: _word(chosen[match[1]]) if match[1] in chosen else match[0], data)
    return data
