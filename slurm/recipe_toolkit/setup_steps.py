"""``setup``: scripts that a recipe names, read when the recipe is, so that the run holds what was checked."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipe_toolkit.document import Document
from recipe_toolkit.faults import Fault, FieldPath, shown

MAX_BYTES = 64 * 1024
MAX_ALL = 128 * 1024  # they stand in recipe.lock.yaml too, which must be read again

_SHELL = re.compile(r"#!\s*(\S*/)?(env\s+(-S\s+)?(\S*/)?)?(sh|bash|dash)(\s|$)")
_ONE_OF = "{script: FILE}, or {name: NAME, run: COMMANDS}"


def read_scripts(document: Document) -> list[Fault]:
    """Put the text of each script in the place of its path; what is wrong with a step is returned.

    A path is relative to the file that names it; one given by ``--set``, to the working folder.
    """
    steps = document.data.get("setup")
    if not isinstance(steps, list):
        return []
    faults: list[Fault] = []
    for index, step in enumerate(steps):
        if isinstance(step, dict):
            steps[index], found = _read(document, step, ("setup", index))
            faults += found
    return [*faults, *_check_all(steps)]


def _read(document: Document, step: dict[str, Any], at: FieldPath) -> tuple[dict[str, Any], list[Fault]]:
    """The step with its text under ``run``, and its faults; a stand-in for a text that cannot be had."""
    if ("script" in step) == ("run" in step):
        if "script" in step:
            return step, [Fault((*at, "run"), "script and run exclude each other", _ONE_OF, key=True)]
        return step, [Fault(at, "has neither script nor run", _ONE_OF)]
    if "run" in step:
        missing = Fault((*at, "name"), "missing: what messages and results call these commands", _ONE_OF, absent=True)
        faults = [] if "name" in step else [missing]
        return step, [*faults, *_check_text(step["run"], (*at, "run"))]
    script = step["script"]
    if not isinstance(script, str) or not script:
        return step, []  # the schema says so
    place = document.locate((*at, "script"))
    text, problem = _text(Path(place.file).parent / script if place.line else Path(script))
    faults = [Fault((*at, "script"), *problem)] if problem else list(_check_script(text, (*at, "script")))
    document.keys[(*at, "run")] = document.values[(*at, "run")] = place
    rest = {key: value for key, value in step.items() if key != "script"}
    return {"name": Path(script).stem, **rest, "run": "true" if faults else text}, faults


def _text(path: Path) -> tuple[str, tuple[str, str | None] | None]:
    """The text of a file, or what is wrong with it and what to do."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "no regular file"
            return "", (f"{path} is {kind}", "name a script")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        return "", (
            f"{path}: {(error.strerror or str(error)).lower()}",
            "the path is relative to the file that names it",
        )
    except ValueError as error:  # a NUL in the name
        return "", (f"{shown(str(path))} is not a file name: {error}", None)
    if len(raw) > MAX_BYTES:
        return "", (f"{path} is larger than {MAX_BYTES // 1024} KiB", "have the step fetch what is large")
    try:
        return raw.decode("utf-8"), None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return "", (f"{path}: byte 0x{raw[error.start]:02x} in line {line} is not UTF-8 text", "name a shell script")


def _check_script(text: str, at: FieldPath) -> Iterator[Fault]:
    if not text.startswith("#!"):
        yield Fault(at, "the script does not begin with #!", "begin it with #!/bin/sh -e")
    yield from _check_text(text, at)


def _check_text(text: Any, at: FieldPath) -> Iterator[Fault]:
    if not isinstance(text, str):
        return
    first = text.partition("\n")[0]
    if "\0" in text:
        yield Fault(at, "the script holds a NUL byte", "name a shell script")
    elif "\r\n" in text:
        yield Fault(at, "the script has the line ends of Windows, which no shell takes", "sed -i 's/\\r$//' FILE")
    elif text.startswith("#!") and not _SHELL.match(first):
        yield Fault(at, f"{shown(first)} is not sh or bash", "call the other program from a script of sh")
    elif len(text.encode("utf-8", "replace")) > MAX_BYTES:
        yield Fault(at, f"is larger than {MAX_BYTES // 1024} KiB", "have the step fetch what is large")


def _check_all(steps: list[Any]) -> Iterator[Fault]:
    known: set[str] = set()
    size = 0
    for index, step in enumerate(steps):
        if not isinstance(step, dict):
            continue
        name, text = step.get("name"), step.get("run")
        if isinstance(name, str) and name in known:
            yield Fault(("setup", index), f"two steps are called {shown(name)}", "give one of them a `name`")
        if isinstance(name, str):
            known.add(name)
        if isinstance(text, str) and size <= MAX_ALL < (size := size + len(text.encode("utf-8", "replace"))):
            yield Fault(("setup", index), f"all steps together are larger than {MAX_ALL // 1024} KiB")
