"""Models' facts from files: a folder's config.json and safetensors, the hub's cache, and the facts that are shipped."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from recipe_toolkit.capacity.card import Card
from recipe_toolkit.capacity.ledger import GIB
from recipe_toolkit.capacity.refusal import UnknownModel
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.recipe import Recipe

_MOST_HEADER = 100 << 20  # safetensors' own limit
_INDEX = "model.safetensors.index.json"
_HUB_S = 15  # for the hub to answer


class Found(NamedTuple):
    """A model's card. ``checkpoint``: bytes of its tensors on disk, where they can be counted."""

    card: Card
    checkpoint: int | None = None


def find_model(recipe: Recipe, cluster: Cluster | None, given: Path | None = None) -> Found | None:
    """The facts of a recipe's model: of ``given``, of the profile's folder, of the hub's cache, or shipped.

    None where nothing is known of it. Raises UnknownModel where a file cannot be read.
    """
    if given is not None:
        return _read(given)
    path = recipe.model.path
    if path.startswith("hf:"):
        repository, _, revision = path[3:].partition("@")
        snapshot = _snapshot(repository, revision or None)
        return (snapshot and _read(snapshot)) or _shipped(f"hf:{repository}")
    folder = (cluster.models.get(path) if cluster else None) or path
    if folder.startswith("hf:"):
        return _shipped(folder.partition("@")[0])
    if os.path.isabs(folder) and os.path.isfile(os.path.join(folder, "config.json")):  # noqa: PTH113,PTH117,PTH118
        return _read(Path(folder))
    return _shipped(path)


def fetch_model(path: str) -> Found:
    """The facts of ``hf:ORG/REPO[@REVISION]`` from the hub: config.json and the index of its tensors, no weights.

    Raises UnknownModel where it cannot be reached within its deadline, or has no config.json.
    """
    if not path.startswith("hf:"):
        raise UnknownModel(f"{path} is no repository of the hub", "model.path: hf:ORG/REPO[@REVISION]")
    repository, _, revision = path[3:].partition("@")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    base = f"{endpoint}/{repository}/resolve/{revision or 'main'}"
    config = _fetched(f"{base}/config.json")
    try:
        total = _fetched(f"{base}/{_INDEX}").get("metadata", {}).get("total_size")
    except UnknownModel:  # one file of tensors has no index
        total = None
    return Found(Card(path, config, f"{base}/config.json"), total if isinstance(total, int) else None)


def _fetched(url: str) -> dict[str, Any]:
    from urllib.request import Request, urlopen

    token = os.environ.get("HF_TOKEN")
    asked = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(asked, timeout=_HUB_S) as answer:
            data = json.loads(answer.read(_MOST_HEADER))
    except (OSError, ValueError, RecursionError) as error:
        raise UnknownModel(f"{url}: {error}", "--model DIR: the model's folder or its config.json") from None
    if not isinstance(data, dict):
        raise UnknownModel(f"{url}: no mapping")
    return data


def _read(path: Path) -> Found:
    file = path / "config.json" if path.is_dir() else path
    config = _load(file)
    return Found(Card(str(file), config, str(file)), _checkpoint(file.parent))


def _load(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnknownModel(f"{file}: {error}", "a model's folder, or its config.json") from None
    if not isinstance(data, dict):
        raise UnknownModel(f"{file}: no mapping", "a model's folder, or its config.json")
    return data


def _checkpoint(folder: Path) -> int | None:
    """Bytes of all tensors: the index says it, else the headers of the files do."""
    index = folder / _INDEX
    if index.is_file():
        total = _load(index).get("metadata", {})
        size = total.get("total_size") if isinstance(total, dict) else None
        if isinstance(size, int):
            return size
    shards = sorted(folder.glob("*.safetensors"))
    return sum(map(_tensors, shards)) if shards else None


def _tensors(file: Path) -> int:
    """Bytes of the tensors of a safetensors file, by its header: 8 bytes of length, then JSON."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MOST_HEADER:
                raise ValueError(f"its header has {length} bytes")
            header = json.loads(stream.read(length))
        ends = [item["data_offsets"] for name, item in header.items() if name != "__metadata__"]
        return sum(int(end) - int(start) for start, end in ends)
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        raise UnknownModel(f"{file}: no safetensors file: {error}") from None


def _snapshot(repository: str, revision: str | None) -> Path | None:
    """The folder of a repository in the hub's cache, if its config.json is there."""
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")  # noqa: PTH111
    root = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub") / f"models--{repository.replace('/', '--')}"
    try:
        name = revision or (root / "refs" / "main").read_text(encoding="utf-8").strip()
        folder = root / "snapshots" / name
        return folder if (folder / "config.json").is_file() else None
    except (OSError, ValueError):
        return None


def _shipped(name: str) -> Found | None:
    file = next((file for known, file in _shipped_names() if known.lower() == name.lower()), None)
    return None if file is None else _ship(file)


@lru_cache(maxsize=1)
def _shipped_names() -> tuple[tuple[str, str], ...]:
    return tuple(_listed())


def _listed() -> Iterator[tuple[str, str]]:
    listed = json.loads((files("recipe_toolkit.capacity") / "models" / "names.json").read_text(encoding="utf-8"))
    for file, names in listed.items():
        yield from ((name, file) for name in names)


def _ship(file: str) -> Found:
    data = json.loads((files("recipe_toolkit.capacity") / "models" / f"{file}.json").read_text(encoding="utf-8"))
    measured = tuple(_in_bytes(item) for item in data.get("measured", ()))
    return Found(Card(file, data["config"], f"shipped, after {data['source']}", measured), data.get("checkpoint_bytes"))


def _in_bytes(item: Mapping[str, Any]) -> dict[str, Any]:
    """The measured terms in bytes: they are written in GiB."""
    found: dict[str, Any] = {}
    for key, value in item.items():
        if key.endswith("_gib"):
            ends = value if isinstance(value, list) else [value, value]
            found[key.removesuffix("_gib")] = [end * GIB for end in ends]
        else:
            found[key] = value
    return found
