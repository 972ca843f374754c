"""Values of a plan that only the nodes can know, as typed references.

An argv element or an environment value is a :data:`Value`: a string, or a reference that is
resolved when the agents meet. References are data, never text in braces, because argvs hold JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union


@dataclass(frozen=True)
class Address:
    """The IP address that node ``node`` advertises to the others."""

    node: int


@dataclass(frozen=True)
class Interface:
    """The name of the network interface that holds node ``node``'s address."""

    node: int


@dataclass(frozen=True)
class Port:
    """Port ``offset`` of the block ``name`` that ``process`` reserved."""

    process: str
    name: str
    offset: int = 0


@dataclass(frozen=True)
class Devices:
    """The ids of the GPUs in ``slots`` of ``node`` (0-based within the allocation), joined by commas."""

    node: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class RunPath:
    """An absolute path inside the run folder; ``path`` is relative to it, ``""`` is the folder."""

    path: str


@dataclass(frozen=True)
class RunId:
    """The run's id: the name of its folder."""


@dataclass(frozen=True)
class PackagePath:
    """An absolute path inside the installed package on the process's own node; ``path`` is relative to it."""

    path: str


@dataclass(frozen=True)
class Python:
    """The Python interpreter that runs the agent of the process's own node."""


@dataclass(frozen=True)
class Program:
    """A program by name: beside the agent's Python if it is there, else on the node's PATH."""

    name: str


@dataclass(frozen=True)
class Host:
    """The name of node ``node``, as the scheduler calls it."""

    node: int


@dataclass(frozen=True)
class JobId:
    """The scheduler's id of the job."""


@dataclass(frozen=True)
class User:
    """``UID:GID`` of the agent of the process's own node."""


@dataclass(frozen=True)
class NodeFolder:
    """The folder of the process's own node, in the run folder: the working directory of what is no client."""


@dataclass(frozen=True)
class WhereThere:
    """Words of a command that stand only where the process's own node has ``path`` (a device)."""

    path: str
    words: tuple["Value", ...]


@dataclass(frozen=True)
class ImagePart:
    """The temporary file, beside an image's own, that the image is fetched into; means nothing elsewhere."""


@dataclass(frozen=True)
class Asked:
    """A number of the point that a search asks for: ``concurrency``, ``requests`` …; none is left when it is bound."""

    name: str


@dataclass(frozen=True)
class Join:
    """The parts, one after the other."""

    parts: tuple["Value", ...]


@dataclass(frozen=True)
class Json:
    """A JSON document in one argument; it may hold references anywhere inside."""

    document: Any


Ref = Union[
    Address,
    Interface,
    Port,
    Devices,
    RunPath,
    RunId,
    PackagePath,
    Python,
    Program,
    Host,
    JobId,
    User,
    NodeFolder,
    ImagePart,
    Asked,
    WhereThere,
    Join,
    Json,
]
Value = Union[str, Ref]

_SIMPLE: dict[str, type] = {
    "address": Address,
    "interface": Interface,
    "port": Port,
    "run_path": RunPath,
    "run_id": RunId,
    "package_path": PackagePath,
    "python": Python,
    "program": Program,
    "host": Host,
    "job_id": JobId,
    "user": User,
    "node_folder": NodeFolder,
    "image_part": ImagePart,
    "asked": Asked,
}
_NAMES = {cls: name for name, cls in _SIMPLE.items()}


@dataclass(frozen=True)
class NodeBinding:
    """What one agent said of its node when it joined.

    ``package``: folder of the installed package. ``host``: the node's name for the scheduler, where that
    is not ``name``. ``user``: the agent's ``UID:GID``. ``folder``: the node's own, in the run folder.
    ``paths``: those of the plan's :class:`WhereThere` that it has.
    """

    name: str
    address: str
    interface: str
    python: str
    devices: tuple[str, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    package: str = ""
    host: str = ""
    user: str = ""
    folder: str = ""
    paths: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Bindings:
    """Everything that turns references into strings.

    ``ports``: process → block → first port. ``image_part``: of the one image that is being fetched.
    """

    run_folder: str
    nodes: tuple[NodeBinding, ...]
    ports: Mapping[str, Mapping[str, int]]
    job_id: str = ""
    image_part: str = ""


def url(process: str, node: int, port: str = "http") -> Join:
    """``http://ADDRESS:PORT`` of a process on ``node``."""
    return Join(("http://", Address(node), ":", Port(process, port)))


def resolve_words(values: Iterable[Value], bindings: Bindings, node: int) -> list[str]:
    """The strings of a command in a process on ``node``. Raises as :func:`resolve`."""
    found: list[str] = []
    for value in values:
        if not isinstance(value, WhereThere):
            found.append(resolve(value, bindings, node))
        elif value.path in bindings.nodes[node].paths:
            found += resolve_words(value.words, bindings, node)
    return found


def resolve(value: Value, bindings: Bindings, node: int) -> str:
    """The string for ``value`` in a process on ``node``.

    Raises KeyError or IndexError if the bindings lack what the plan refers to.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Join):
        return "".join(resolve(part, bindings, node) for part in value.parts)
    if isinstance(value, Json):
        return json.dumps(_resolve_document(value.document, bindings, node), separators=(",", ":"))
    return _RESOLVED[type(value)](value, bindings, node)


def _package_path(value: PackagePath, bindings: Bindings, node: int) -> str:
    folder = _said(bindings.nodes[node].package, f"where the package is on node {node}, for {value.path}")
    return f"{folder}/{value.path}".rstrip("/")


def _said(text: str, what: str) -> str:
    if not text:
        raise KeyError(f"nobody has said {what}")
    return text


_RESOLVED: Mapping[type, Callable[[Any, Bindings, int], str]] = {
    Address: lambda value, bindings, _: bindings.nodes[value.node].address,
    Interface: lambda value, bindings, _: bindings.nodes[value.node].interface,
    Port: lambda value, bindings, _: str(bindings.ports[value.process][value.name] + value.offset),
    Devices: lambda value, bindings, _: ",".join(bindings.nodes[value.node].devices[slot] for slot in value.slots),
    RunPath: lambda value, bindings, _: f"{bindings.run_folder}/{value.path}".rstrip("/"),
    RunId: lambda _, bindings, __: bindings.run_folder.rstrip("/").rpartition("/")[2],
    PackagePath: _package_path,
    Python: lambda _, bindings, node: bindings.nodes[node].python,
    Program: lambda value, bindings, node: bindings.nodes[node].programs[value.name],
    Host: lambda value, bindings, _: bindings.nodes[value.node].host or bindings.nodes[value.node].name,
    JobId: lambda _, bindings, __: _said(bindings.job_id, "the job's id"),
    User: lambda _, bindings, node: _said(bindings.nodes[node].user, f"the user of node {node}"),
    NodeFolder: lambda _, bindings, node: _said(bindings.nodes[node].folder, f"the folder of node {node}"),
    ImagePart: lambda _, bindings, __: _said(bindings.image_part, "the file that an image is fetched into"),
    Asked: lambda value, _, __: _said("", f"which {value.name} the search asks for"),
}


def _resolve_document(document: Any, bindings: Bindings, node: int) -> Any:
    if isinstance(document, Mapping):
        return {key: _resolve_document(item, bindings, node) for key, item in document.items()}
    if isinstance(document, (list, tuple)):
        return [_resolve_document(item, bindings, node) for item in document]
    if isinstance(document, Port):
        return int(resolve(document, bindings, node))
    if type(document) in _NAMES or isinstance(document, (Devices, Join, Json)):
        return resolve(document, bindings, node)
    return document


def encode(value: Any) -> Any:
    """A value as JSON data; a reference becomes an object with one key that begins with ``$``."""
    if isinstance(value, Join):
        return {"$join": [encode(part) for part in value.parts]}
    if isinstance(value, Json):
        return {"$json": encode(value.document)}
    if isinstance(value, Devices):
        return {"$devices": {"node": value.node, "slots": list(value.slots)}}
    if isinstance(value, WhereThere):
        return {"$where_there": {"path": value.path, "words": [encode(word) for word in value.words]}}
    if type(value) in _NAMES:
        return {f"${_NAMES[type(value)]}": dict(vars(value))}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(data: Any) -> Any:
    """The inverse of :func:`encode`."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    if len(data) == 1:
        key, body = next(iter(data.items()))
        if key == "$join":
            return Join(tuple(decode(part) for part in body))
        if key == "$json":
            return Json(decode(body))
        if key == "$devices":
            return Devices(body["node"], tuple(body["slots"]))
        if key == "$where_there":
            return WhereThere(body["path"], tuple(decode(word) for word in body["words"]))
        if key.startswith("$") and key[1:] in _SIMPLE:
            return _SIMPLE[key[1:]](**body)
    return {key: decode(item) for key, item in data.items()}


_SHOWN: dict[type, str] = {
    Address: "<address of node {0.node}>",
    Interface: "<interface of node {0.node}>",
    PackagePath: "<package>/{0.path}",
    RunId: "<run id>",
    Host: "<name of node {0.node}>",
    JobId: "<job id>",
    User: "<uid:gid>",
    NodeFolder: "<folder of the node>",
    ImagePart: "<temporary file>",
    Asked: "<{0.name}>",
    Python: "<python>",
    Program: "{0.name}",
}


def show(value: Value) -> str:
    """A readable form of a value for people: references in angle brackets."""
    if isinstance(value, str):
        return value
    if isinstance(value, Join):
        return "".join(show(part) for part in value.parts)
    if isinstance(value, Json):
        return json.dumps(_show_document(value.document), separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, Port):
        offset = f"{value.offset:+d}" if value.offset else ""
        return f"<port {value.process}.{value.name}{offset}>"
    if isinstance(value, Devices):
        return f"<gpus {','.join(map(str, value.slots))}>"
    if isinstance(value, RunPath):
        return f"<run>/{value.path}".rstrip("/")
    if isinstance(value, WhereThere):
        return f"<where {value.path} is: {' '.join(map(show, value.words))}>"
    return _SHOWN[type(value)].format(value)


def _show_document(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {key: _show_document(item) for key, item in document.items()}
    if isinstance(document, (list, tuple)):
        return [_show_document(item) for item in document]
    if type(document) in _NAMES or isinstance(document, (Devices, Join, Json)):
        return show(document)
    return document
