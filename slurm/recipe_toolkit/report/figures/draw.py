"""Vega on the page and PNG files of figures, both by vl-convert, which needs no browser."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report.figures.model import Figure, whole_spec
from recipe_toolkit.rundir import write_atomic

PACKAGE = "vl-convert-python"
EXTRA = "pip install 'slurm-recipe-toolkit[report]'"
_MISSING = f"{PACKAGE} is not installed here: {EXTRA}"
_VEGALITE = "6.1"
# Vega, Vega-Lite and Vega-Embed, all under the BSD 3-Clause licence, as the package ships them.
_LICENCE = "/* Vega, Vega-Lite, Vega-Embed: Copyright University of Washington Interactive Data Lab and contributors, \
BSD-3-Clause, https://github.com/vega. */\n"
_SNIPPET = "globalThis.recipeEmbed = vegaEmbed;"
_SCALE = 2.0


def bundle() -> str | None:
    """Vega as one script, which sets ``recipeEmbed``; None without the ``report`` extra.

    The package takes seconds to put it together, so it is kept in the user's cache folder.
    """
    kept = _kept()
    if kept is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        script = kept.read_text(encoding="utf-8")
        if script.endswith(_end()):
            return script
    import vl_convert

    made = vl_convert.javascript_bundle(_SNIPPET, vl_version=_VEGALITE)
    # The text of a script element ends at the first such sign, in a string too.
    script = _LICENCE + made.replace("</script", "<\\/script").replace("<!--", "<\\!--") + _end()
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, script)
    return script


def _kept() -> Path | None:
    try:
        name = f"vega-{version(PACKAGE)}-{_VEGALITE}.js"
    except PackageNotFoundError:
        return None
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "recipe-toolkit" / name


def _end() -> str:
    return f"\n/* {PACKAGE} {version(PACKAGE)} */\n"


def png(figure: Figure) -> bytes:
    """The figure as a picture on white. Raises RecipeError without the ``report`` extra."""
    try:
        import vl_convert
    except ImportError as error:
        raise RecipeError("PNG files are drawn by vl-convert-python, which is not installed", hint=EXTRA) from error
    try:
        drawn: bytes = vl_convert.vegalite_to_png(whole_spec(figure), vl_version=_VEGALITE, scale=_SCALE)
    except ValueError as error:  # of figures that no axis can hold
        first = str(error).partition("\n")[0]
        raise RecipeError(f"{figure.title}: cannot be drawn: {first}", hint="--csv DIR writes what it shows") from error
    return drawn


def as_csv(figure: Figure) -> str:
    """Every row behind the figure, full digits, as RFC 4180 has it. A cell that a spreadsheet would run is quoted."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(figure.head)
    writer.writerows([_cell(value) for value in row] for row in figure.rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def write(figures: Sequence[Figure], folder: Path, kind: str) -> list[Path]:
    """Write each figure as ``KEY.png`` or ``KEY.csv`` into the folder, which is made. Raises RecipeError."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            path = folder / f"{figure.key}.{kind}"
            _write_bytes(path, png(figure) if kind == "png" else as_csv(figure).encode("utf-8", "backslashreplace"))
            written.append(path)
    except OSError as error:
        raise RecipeError(f"cannot write figures into {folder}: {error.strerror or error}") from error
    return written


def _write_bytes(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
