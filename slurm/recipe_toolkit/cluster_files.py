"""Where profiles are looked for by name. Light: a shell's completion asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

EMBEDDED = Path(__file__).parent / "clusters"


def cluster_folders() -> Iterator[Path]:
    """The folders that hold profiles, the first to be searched first; the package's own is the last."""
    for item in os.environ.get("RECIPE_CLUSTERS", "").split(os.pathsep):
        if item:
            yield Path(os.path.expanduser(item))  # noqa: PTH111  # Path.expanduser raises for no user
    yield Path("recipes/clusters")
    yield Path(os.path.expanduser("~/.config/recipe-toolkit/clusters"))  # noqa: PTH111
    yield EMBEDDED


def known_clusters() -> list[str]:
    """The names of all profiles that ``--cluster`` finds by name."""
    return sorted({item.stem for folder in cluster_folders() if folder.is_dir() for item in folder.glob("*.yaml")})
