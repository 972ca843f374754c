"""A ``vllm serve`` command line as a mapping of flags, each with its own place in the file."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from typing import Any

from recipe_toolkit import vllm_args
from recipe_toolkit.document import Document, Place
from recipe_toolkit.faults import FieldPath

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_CONTROL = frozenset({";", "&&", "||", "|", "&", ">", "2>&1", ">>"})
_NUMBER = re.compile(r"-[0-9.]+")


class CommandError(Exception):
    """The command is not one that can be read; the message says why."""


def filled(text: str, values: Mapping[str, Any]) -> tuple[str, set[str]]:
    """The text with ``{NAME}`` replaced, and the names that were. Braces that hold something else stay."""
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            return match[0]
        used.add(match[1])
        return str(values[match[1]])

    for _ in range(5):  # a value may hold a placeholder itself
        before, text = text, _PLACEHOLDER.sub(fill, text)
        if text == before:
            break
    return text, used


def read_command(text: str, version: str) -> tuple[dict[str, str], str, dict[str, Any], list[str]]:
    """Variables set before ``vllm serve``, the model, its flags, and the words that are none of these.

    Raises CommandError.
    """
    try:
        words = shlex.split(re.sub(r"\\\s*\n", " ", text), comments=False)
    except ValueError as error:
        raise CommandError(f"cannot be split into words: {str(error).lower()}") from error
    starts = [index for index, pair in enumerate(itertools.pairwise(words)) if _serves(*pair)]
    if len(starts) != 1:
        raise CommandError("is not one command of the form vllm serve MODEL --FLAGS")
    before, after = words[: starts[0]], words[starts[0] + 2 :]
    variables = [match for word in before if (match := _ASSIGNMENT.fullmatch(word))]
    rest = [word for word in before if not _ASSIGNMENT.fullmatch(word) and word not in ("exec", "env", "export")]
    end = next((index for index, word in enumerate(after) if word in _CONTROL), len(after))
    model, flags, more = _flags(after[:end], version)
    return {match[1]: match[2] for match in variables}, model, flags, [*rest, *more, *after[end:]]


def _serves(one: str, other: str) -> bool:
    return one.rsplit("/", 1)[-1] == "vllm" and other == "serve"


def _flags(words: list[str], version: str) -> tuple[str, dict[str, Any], list[str]]:
    model, flags, more = "", dict[str, Any](), list[str]()
    rest = iter([*words, None])
    word = next(rest)
    while word is not None:
        if not word.startswith("-"):
            more += [word] if model else []
            model, word = model or word, next(rest)
            continue
        key, equals, value = word.partition("=")
        word = next(rest)
        values = [value] if equals else []
        while not equals and word is not None and _is_value(word, key, len(values), version):
            values.append(word)
            word = next(rest)
        _add(flags, key, values)
    return model, flags, more


def _is_value(word: str, key: str, count: int, version: str) -> bool:
    """Whether the word belongs to the flag before it. An unknown flag takes one value, where one follows."""
    if word.startswith("-") and not _NUMBER.fullmatch(word):
        return False
    plain = key.lstrip("-").partition(".")[0]
    option = vllm_args.option(vllm_args.full_name(plain, version), version)
    kind = "flag" if vllm_args.positive(plain, version) else (option or {}).get("kind", "value")
    return kind not in ("flag", "bool") and (count == 0 or kind == "list")


def _add(flags: dict[str, Any], key: str, values: list[str]) -> None:
    value: Any = True if not values else values[0] if len(values) == 1 else values
    if key in flags and isinstance(flags[key], list):
        flags[key] += values
    else:
        flags[key] = value


def place_flags(document: Document, path: FieldPath, flags: Mapping[str, Any]) -> None:
    """Put the flags in the place of the command's text, each at the line where it first stands there."""
    text, begin = _at(document.data, path), document.locate(path)
    lines = text.splitlines() if isinstance(text, str) else []
    _put(document.data, path, dict(flags))
    for key in flags:
        line = next((number for number, line in enumerate(lines) if key in re.split(r"[\s=]+", line)), None)
        at = begin if line is None else Place(begin.file, begin.line + (len(lines) > 1) + line, 1)
        document.keys[(*path, key)] = document.values[(*path, key)] = at


def _at(data: Any, path: FieldPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _put(data: Any, path: FieldPath, value: Any) -> None:
    _at(data, path[:-1])[path[-1]] = value
