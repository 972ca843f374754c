"""YAML text to plain data that knows the file, line and column of each of its keys and values.

The data is what JSON has: mappings with string keys, lists, strings, finite numbers, booleans, null.
Plain scalars follow YAML 1.2, see :mod:`recipe_toolkit.scalars`. Anchors, aliases and merge keys
(``<<``) work; an aliased value is a copy. Refused: duplicate keys, keys that are not strings, tags
other than YAML's own, more than one document, and files whose size, nesting or expanded aliases no
honest recipe reaches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from recipe_toolkit import scalars
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.faults import Fault, FieldPath, dotted, shown
from recipe_toolkit.text_file import read_text

MAX_DEPTH = 50
MAX_NODES = 100_000
# Linux takes no longer word in an argv or an environment (MAX_ARG_STRLEN, 128 KiB with its name and a NUL).
MAX_STRING = 120_000

# libyaml is ten times faster than PyYAML's own parser, but a PyYAML built without it works as well.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TAG = "tag:yaml.org,2002:"
# Written by an escape, or shown as nothing: no path, flag or name is meant to hold them, and a terminal obeys them.
_UNFIT = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_ILLEGAL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Place(NamedTuple):
    """Where something stands; line and column count from 1, and are 0 for a value given by ``--set``."""

    file: str
    line: int
    column: int


@dataclass
class Document:
    """``data`` and, by path, the place of each key and each value; ``problems`` that did not stop the reading."""

    file: str
    data: Any
    keys: dict[FieldPath, Place] = field(default_factory=dict)
    values: dict[FieldPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def locate(self, path: FieldPath, *, key: bool = False) -> Place:
        """The place of the value (or the key) at ``path``, or of the nearest thing above it."""
        first, second = (self.keys, self.values) if key else (self.values, self.keys)
        place = first.get(path) or second.get(path)
        while place is None and path:
            path = path[:-1]
            place = self.keys.get(path) or self.values.get(path)
        return place or Place(self.file, 1, 1)

    def problem(self, fault: Fault) -> Problem:
        """The fault with its place."""
        place = self.locate(fault.path[:-1], key=True) if fault.absent else self.locate(fault.path, key=fault.key)
        return Problem(*place, dotted(fault.path), fault.message, fault.hint, fault.severity, fault.rule)

    def problems_with(self, faults: Sequence[Fault]) -> list[Problem]:
        """Its own problems and the faults. A value that could not be read is told once: other faults of it follow."""
        unread = {Place(item.file, item.line, item.column) for item in self.problems if item.line and not item.field}
        told = {
            fault for fault in faults if not fault.key and not fault.absent and self.values.get(fault.path) in unread
        }
        paths: dict[Place, FieldPath] = {}
        for path, place in self.values.items() if unread else ():
            paths.setdefault(place, path)
        own = [
            replace(item, field=item.field or dotted(paths.get(Place(item.file, item.line, item.column), ())))
            for item in self.problems
        ]
        return own + [self.problem(fault) for fault in faults if fault not in told]

    def drop(self, path: FieldPath) -> None:
        """Forget the places at and below ``path``."""
        depth = len(path)
        for places in (self.keys, self.values):
            for known in [item for item in places if item[:depth] == path]:
                del places[known]

    def graft(self, path: FieldPath, other: "Document", source: FieldPath = ()) -> None:
        """Take over the places of ``other`` at and below ``source``, as if they stood at ``path``."""
        depth = len(source)
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            mine.update({path + item[depth:]: place for item, place in theirs.items() if item[:depth] == source})


@dataclass
class _Node:
    """A node of the text. ``content``: the scalar's value, a list of nodes, or pairs of key and value nodes."""

    kind: str
    place: Place
    content: Any = None
    done: bool = False
    merges: bool = False
    effective: dict[str, tuple["_Node", "_Node"]] | None = None


class _Composer:
    """Builds nodes from the parser's events. Bounded in depth and number, which PyYAML's own is not."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.count = 0
        self._anchors: dict[str, _Node] = {}
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)

    def document(self) -> _Node | None:
        """The root node, or None where the text holds none."""
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        root = self._node(next(self._events), 0)
        next(self._events)
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise self.fatal(self._place(following), "a second document begins here", "one file holds one document")
        return root

    def fatal(self, place: Place, message: str, hint: str | None = None) -> InputError:
        """The error that ends the reading, together with what was found before it."""
        return InputError([*self.problems, Problem(*place, "", message, hint)])

    def _note(self, place: Place, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(*place, "", message, hint))

    def _place(self, event: Any) -> Place:
        return Place(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, depth: int) -> _Node:
        place = self._place(event)
        self.count += 1
        if depth > MAX_DEPTH:
            raise self.fatal(place, f"nested more than {MAX_DEPTH} deep")
        if self.count > MAX_NODES:
            raise self.fatal(place, f"more than {MAX_NODES} values")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, place)
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, place)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._open(event, place, "list")
            node.content = list(self._items(depth, yaml.SequenceEndEvent))
        else:
            node = self._open(event, place, "mapping")
            node.content = list(self._pairs(depth))
        if event.anchor:
            self._anchors[event.anchor] = node
        node.done = True
        return node

    def _alias(self, anchor: str | None, place: Place) -> _Node:
        node = self._anchors.get(anchor or "")
        if node is None:
            raise self.fatal(place, f"no anchor &{anchor} stands before this alias")
        if not node.done:
            raise self.fatal(place, f"alias *{anchor} stands inside its own anchor")
        return node

    def _open(self, event: Any, place: Place, kind: str) -> _Node:
        if event.tag not in (None, "!", _TAG + {"list": "seq", "mapping": "map"}[kind]):
            self._note(place, f"tag {event.tag} is not supported")
        node = _Node(kind, place)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _items(self, depth: int, end: type) -> Iterator[_Node]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield self._node(event, depth + 1)

    def _pairs(self, depth: int) -> Iterator[tuple[_Node, _Node]]:
        first: dict[str, Place] = {}
        nodes = self._items(depth, yaml.MappingEndEvent)
        for key in nodes:
            value = next(nodes)
            if key.kind != "scalar":
                self._note(key.place, "a key must be a string")
                continue
            if not key.merges and not isinstance(key.content, str):
                self._note(key.place, f"key {shown(key.content)} is not a string", "put it in quotes")
                key = _Node("scalar", key.place, shown(key.content), done=True)
            if key.content in first:
                self._note(key.place, f"key `{key.content}` stands twice; first in line {first[key.content].line}")
                continue
            first[key.content] = key.place
            yield key, value

    def _scalar(self, event: Any, place: Place) -> _Node:
        text: str = event.value
        node = _Node("scalar", place, text)
        unfit = _UNFIT.search(text)
        if unfit:
            self._note(place, f"a string cannot hold {unfit.group()!a}")
        if len(text) > MAX_STRING or len(text.encode()) > MAX_STRING:
            self._note(place, f"a string longer than {MAX_STRING} bytes", "no command line or variable can hold it")
        plain = event.implicit[0]
        if plain and text == "<<":
            node.merges = True
        elif plain or event.tag in {_TAG + name for name in ("int", "float", "bool", "null")}:
            try:
                node.content = scalars.resolve(text)
            except ValueError as error:
                self._note(place, str(error))
            self._check_tag(event, node)
        elif event.tag not in (None, "!", _TAG + "str"):
            self._note(place, f"tag {event.tag} is not supported")
        return node

    def _check_tag(self, event: Any, node: _Node) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "int": (int,),
            "float": (int, float),
            "null": (type(None),),
            "bool": (bool,),
        }
        name = (event.tag or "").removeprefix(_TAG)
        if name in kinds and (
            not isinstance(node.content, kinds[name]) or isinstance(node.content, bool) > (name == "bool")
        ):
            self._note(node.place, f"{event.value!r} is not a YAML {name}")


class _Flattener:
    """Turns nodes into data and places, within a budget that an alias bomb exceeds."""

    def __init__(self, composer: _Composer, document: Document) -> None:
        self._composer = composer
        self._document = document
        self._budget = MAX_NODES

    def flatten(self, node: _Node, path: FieldPath) -> Any:
        """The data of ``node``; its place is noted under ``path``."""
        self._spend(node)
        if len(path) > MAX_DEPTH:
            raise self._composer.fatal(node.place, f"nested more than {MAX_DEPTH} deep, aliases followed")
        self._document.values[path] = node.place
        if node.kind == "scalar":
            return node.content
        if node.kind == "list":
            return [self.flatten(item, (*path, index)) for index, item in enumerate(node.content)]
        data = {}
        for name, (key, value) in self._effective(node).items():
            self._document.keys[(*path, name)] = key.place
            data[name] = self.flatten(value, (*path, name))
        return data

    def _spend(self, node: _Node) -> None:
        self._budget -= 1
        if self._budget < 0:
            raise self._composer.fatal(node.place, f"more than {MAX_NODES} values once aliases are followed")

    def _effective(self, node: _Node, depth: int = 0) -> dict[str, tuple[_Node, _Node]]:
        """The pairs of a mapping with its merge keys followed; its own keys win, then earlier merges."""
        if node.effective is None:
            if depth > MAX_DEPTH:
                raise self._composer.fatal(node.place, f"merge keys nested more than {MAX_DEPTH} deep")
            own = {key.content: (key, value) for key, value in node.content if not key.merges}
            for key, value in node.content:
                for merged in self._merged(value) if key.merges else ():
                    for name, pair in self._effective(merged, depth + 1).items():
                        self._spend(merged)
                        own.setdefault(name, pair)
            node.effective = own
        return node.effective

    def _merged(self, value: _Node) -> Iterable[_Node]:
        candidates: list[_Node] = value.content if value.kind == "list" else [value]
        for node in candidates:
            if node.kind != "mapping":
                self._composer.problems.append(Problem(*node.place, "<<", "a merge key takes a mapping, or several"))
        return [node for node in candidates if node.kind == "mapping"]


def parse_yaml(text: str, file: str) -> Document:
    """The document that ``text`` holds; ``file`` is how problems name it.

    Raises InputError where the text is no YAML. Faults that leave the rest readable are in ``problems``.
    """
    illegal = _ILLEGAL.search(text)
    if illegal:
        line = text.count("\n", 0, illegal.start()) + 1
        column = illegal.start() - (text.rfind("\n", 0, illegal.start()) + 1) + 1
        raise InputError([Problem(file, line, column, "", f"character {illegal.group()!r} is not text")])
    try:
        composer = _Composer(text, file)
        root = composer.document()
    except yaml.YAMLError as error:
        raise InputError([_syntax_problem(error, file)]) from error
    if root is None:
        return Document(file, None)
    document = Document(file, None, problems=composer.problems)
    document.data = _Flattener(composer, document).flatten(root, ())
    return document


_HINTS = (
    ("mapping values are not allowed", "quote a value that holds ': ', and check the indentation"),
    ("cannot start any token", "indent with spaces, not tabs; quote a value that begins with @, ` or %"),
    ("expected <block end>", "check the indentation: keys of one mapping begin in one column"),
    ("could not find expected ':'", "a line without `key: value`, or a quote that is not closed"),
    ("unexpected ':'", "write a space after the colon"),
    ("invalid Unicode character escape", "write the sign itself: YAML knows no pairs of \\u as JSON has them"),
    ("unexpected end of stream", "a quote or bracket is not closed"),
)


def _syntax_problem(error: yaml.YAMLError, file: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or str(error)
    context, begin = getattr(error, "context", None), getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    where = f" {context}" if context else ""
    if context and begin and begin.line + 1 != line:
        where += f" that begins in line {begin.line + 1}"
    hint = next((hint for part, hint in _HINTS if part in what), None)
    return Problem(file, line, column, "", f"not YAML: {what}{where}", hint)


def read_document(path: Path, file: str | None = None) -> Document:
    """The document in a file. Raises InputError where it cannot be read or is no YAML."""
    return parse_yaml(read_text(path, file), file or str(path))


class Dumper(_DUMPER):  # type: ignore[misc]
    """Quotes each string that YAML 1.1 or 1.2 would read as something else; writes no aliases."""

    yaml_implicit_resolvers = {key: list(pairs) for key, pairs in _DUMPER.yaml_implicit_resolvers.items()}

    def ignore_aliases(self, data: Any) -> bool:
        """Whether equal data is written out again: always."""
        return True


Dumper.add_implicit_resolver(
    _TAG + "float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)
Dumper.add_implicit_resolver(_TAG + "int", re.compile(r"0o[0-7]+$|[-+]?[0-9]+$"), list("-+0123456789"))


def _text(dumper: Any, text: str) -> Any:
    """Lines as lines, where YAML can hold them so."""
    return dumper.represent_scalar(_TAG + "str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, _text)


def dump_yaml(data: Any) -> str:
    """YAML that loads to equal data, keys in the order they have."""
    text: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100)
    return text
