"""Which driver of NVIDIA a node has loaded, and whether DGX OS brings it. Reads; changes nothing.

``main`` is called by the role, after this text; it prints a JSON document.
"""

from __future__ import annotations

import json
import re
from pathlib import Path


def text_of(path: Path) -> str:
    """The text of a file; nothing where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def look(root: str = "/") -> dict:
    """``{"dgx": name or "", "loaded": version or "", "closed": whether the module is not the open one}``."""
    release = text_of(Path(root, "etc/dgx-release"))
    name = re.search(r'DGX_(?:PRETTY_)?NAME="?([^"\n]+)', release)
    module = text_of(Path(root, "proc/driver/nvidia/version"))
    return {
        "dgx": (name[1] if name else "DGX OS") if Path(root, "etc/dgx-release").exists() else "",
        "loaded": text_of(Path(root, "sys/module/nvidia/version")),
        "closed": bool(module) and "Open Kernel Module" not in module,
    }


def main() -> None:
    """Print what ``look`` finds."""
    print(json.dumps(look()))
