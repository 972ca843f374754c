"""The schemas as editors use them: beside the recipes, and with the flags that the newest known vLLM takes."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe_toolkit import vllm_args
from recipe_toolkit.rundir import write_atomic
from recipe_toolkit.schema_check import load_schema

FOLDER = ".recipe"
KINDS = ("recipe", "cluster")


def editor_schema(name: str) -> dict[str, Any]:
    """The schema ``name``; that of recipes knows the flags of ``engine.args`` and a role's ``args``.

    It accepts what the plain one accepts, and null where that can delete a key of the base.
    Raises OSError where a file of the package cannot be read.
    """
    schema = copy.deepcopy(load_schema(name))
    if name == "recipe":
        _take_null(schema)
        complete = schema["$defs"]["complete"]
        whole = {key: complete["properties"].get(key, schema["properties"][key]) for key in complete["required"]}
        # What is required is offered as one piece, under this title.
        complete.update(title="a whole recipe", properties={**whole, **complete["properties"]})
        definitions = schema["$defs"]
        takes = definitions["args"]["additionalProperties"]["type"]
        definitions["vllm_args"] = {**definitions["args"], "properties": _flags(takes)}
        for holder in ("engine", "role"):
            definitions[holder]["properties"]["args"]["$ref"] = "#/$defs/vllm_args"
    return schema


def _nodes(node: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping of a schema, with its key."""
    if isinstance(node, dict):
        yield key, node
    for name, child in node.items() if isinstance(node, dict) else ((key, item) for item in node):
        if isinstance(child, (dict, list)):
            yield from _nodes(child, name)


def _take_null(schema: dict[str, Any]) -> None:
    """Take null where a recipe can delete: all but choices, and single values that every recipe needs."""
    nodes = list(_nodes(schema))
    needed = {name for _, node in nodes if isinstance(node.get("required"), list) for name in node["required"]}
    for key, node in nodes:
        kinds = node.get("type")
        if "enum" in node or not isinstance(kinds, (str, list)):
            continue
        if kinds in ("object", "array") or key not in needed:
            node["type"] = [*([kinds] if isinstance(kinds, str) else kinds), "null"]


def _flags(takes: Sequence[str]) -> dict[str, Any]:
    version = vllm_args.versions()[-1]
    known = json.loads((vllm_args.FOLDER / f"{version}.json").read_text(encoding="utf-8"))
    set_elsewhere = {*vllm_args.RESERVED, *vllm_args.PARALLEL}
    return {
        name: {"type": takes, **_flag(name, {"choices": known["values"].get(name), **option}, version)}
        for name, option in known["options"].items()
        if name not in set_elsewhere
    }


_TAKES = {
    "flag": "true",
    "bool": "true or false",
    "json": "a mapping, a list or a string",
    "list": "a list",
    "repeat": "a list",
}
_HUMAN = "an integer, or such as 64K"
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "human_int": _HUMAN,
    "human_int_or_auto": f"{_HUMAN} or auto",
}


def _flag(name: str, option: Mapping[str, Any], version: str) -> dict[str, Any]:
    # Examples are offered and refuse nothing: another version may take more. `recipe validate` knows which.
    choices = option.get("choices") or {"flag": [True], "bool": [True, False]}.get(option["kind"], [])
    takes = _TAKES.get(option["kind"]) or _TYPES.get(option.get("type", ""), "a value")
    return {"description": f"--{name} of vLLM {version}: {takes}.", **({"examples": choices} if choices else {})}


def schema_folder(beside: Path) -> Path:
    """``.recipe`` of the nearest folder, from ``beside`` upwards, that has one or is a git tree; else of ``beside``."""
    start = beside.absolute()
    for folder in (start, *start.parents):
        if (folder / FOLDER).is_dir() or (folder / ".git").exists():
            return folder / FOLDER
    return start / FOLDER


def install_schemas(beside: Path, *, renew: bool = True) -> list[Path]:
    """Write the schemas of recipes and profiles to the schema folder; returns their paths. Raises OSError.

    ``renew``: also in place of those of another version of this package.
    """
    folder = schema_folder(beside)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [_path(folder, kind) for kind in KINDS]
    for kind, path in zip(KINDS, paths, strict=True):
        text = json.dumps(editor_schema(kind), indent=1) + "\n"
        if not path.is_file() or (renew and path.read_text(encoding="utf-8") != text):
            write_atomic(path, text)
    return paths


def modeline(file: Path, kind: str) -> str:
    """The first line of ``file`` by which yaml-language-server finds the schema, relative to the file."""
    path = os.path.relpath(_path(schema_folder(file.parent), kind), file.absolute().parent)
    return f"# yaml-language-server: $schema={path}"


def _path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.schema.json"
