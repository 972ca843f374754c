"""What an image's own ``vllm serve --help=all`` says of the flags of a command that is to run in it.

The lists of the package are of releases; an image may be a build between them, or somebody's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recipe_toolkit.faults import did_you_mean
from recipe_toolkit.vllm_args.lists import list_for
from recipe_toolkit.vllm_args.problem import ArgProblem, among, nearest_of

# An option begins in the third column; what explains it stands further to the right.
_OPTION = re.compile(r" {2}(-{1,2}[A-Za-z].*)")
_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_CHOICES = re.compile(r"\{([^{}]*)\}")
# Of a help that is cut, or of another program, nothing follows. vLLM 0.20 has more than three hundred.
_FEWEST = 100


@dataclass(frozen=True)
class Help:
    """The options of a help text. ``names``: every spelling that it shows. ``choices``: by name, its values."""

    names: frozenset[str]
    choices: Mapping[str, list[str]]


def read_help(text: str) -> Help:
    """The options of ``vllm serve --help=all``. Raises ValueError where the text is no such help."""
    names: set[str] = set()
    choices: dict[str, list[str]] = {}
    for line in text.splitlines():
        option = _OPTION.fullmatch(line)
        if not option:
            continue
        found = _CHOICES.search(option[1])
        # Spellings stand before the choices or the value; each may repeat it.
        head = re.split(r"\s{2,}", _CHOICES.sub("VALUE", option[1]))[0]
        spelled = [word for word in re.split(r"[,\s]+", head) if _NAME.fullmatch(word)]
        names.update(spelled)
        # A flag that takes other names too says so after its choices.
        if found and " or " not in option[1]:
            choices |= dict.fromkeys(spelled, found[1].split(","))
    if len(names) < _FEWEST:
        raise ValueError(f"no help of vllm serve: it shows {len(names)} options")
    return Help(frozenset(names), choices)


def against_help(words: Sequence[str], shown: Help, version: str) -> list[ArgProblem]:
    """The flags of a command that the help does not show, and values that it excludes.

    ``words``: ``serve MODEL --flag value …`` as it is run, the toolkit's own flags among them. ``version``: of the
    recipe; its list knows other spellings of a flag, which vLLM takes and no longer shows.
    """
    return list(_problems(words, shown, version))


def _problems(words: Sequence[str], shown: Help, version: str) -> Iterator[ArgProblem]:
    for index, word in enumerate(words):
        name, joined, value = word.partition("=")
        if not (name.startswith("--") and _NAME.fullmatch(name)):
            continue
        found = next((other for other in _spellings(name, version) if other in shown.names), None)
        if found is None:
            hint = did_you_mean(name[2:], [other[2:] for other in shown.names if other.startswith("--")])
            yield ArgProblem((name[2:],), f"this vLLM has no flag {name}", hint)
            continue
        allowed = shown.choices.get(found)
        given = value if joined else next(iter(words[index + 1 : index + 2]), "")
        if allowed and given and not (given.startswith("--") or among(given, allowed)):
            message = f"{given!r} is none of the values that this vLLM takes"
            yield ArgProblem((name[2:],), message, nearest_of(given, allowed))


def _spellings(name: str, version: str) -> Iterator[str]:
    """The name, then all that mean the same."""
    yield name
    known, plain = list_for(version), name[2:]
    full = known.names.get(plain)
    if full:
        yield from (f"--{other}" for other, same in known.names.items() if same == full)
    elif plain in known.negative:
        yield from (f"--{other}" for other, same in known.negative.items() if same == known.negative[plain])
