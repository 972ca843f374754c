"""The flags of ``vllm serve``: what each version takes, and YAML values as its words.

The lists in ``schemas/vllm/VERSION.json`` are written by ``scripts/export-vllm-args`` from vLLM's own
parser and configuration classes. Only the standard library is imported, and a list is read when it is
first needed.
"""

from collections.abc import Mapping
from typing import Any

from recipe_toolkit.vllm_args.check import check, unknown_version
from recipe_toolkit.vllm_args.lists import FOLDER, list_for, match, versions
from recipe_toolkit.vllm_args.problem import ArgProblem
from recipe_toolkit.vllm_args.render import canonical, render
from recipe_toolkit.vllm_args.reserved import PARALLEL, RESERVED

__all__ = [
    "FOLDER",
    "PARALLEL",
    "RESERVED",
    "ArgProblem",
    "canonical",
    "check",
    "full_name",
    "knows",
    "match",
    "option",
    "positive",
    "render",
    "unknown_version",
    "versions",
]


def knows(flag: str, version: str) -> bool:
    """Whether this version takes the flag."""
    return flag in list_for(version).names


def option(name: str, version: str) -> Mapping[str, Any] | None:
    """What the list says of a flag (``kind``, ``type``, ``choices``), None where it lacks the flag."""
    return list_for(version).options.get(name)


def positive(key: str, version: str) -> str | None:
    """The flag that ``key`` is the negative of (``no-x`` of ``x``), None where it is none."""
    known = list_for(version)
    return None if canonical(key) in known.names else known.negative.get(canonical(key))


def full_name(key: str, version: str) -> str:
    """The name that a flag or an alias of it goes by; an unknown flag is only spelt with ``-``."""
    plain = canonical(key)
    return list_for(version).names.get(plain, plain)
