"""Before ``apptainer exec``: the program's home folder, and the names of its variables.

Run as a file, with Python's ``-I -S``::

    apptainer.py HOME NAME,NAME,... APPTAINER...

Apptainer sets the variable NAME in the container where its own environment has APPTAINERENV_NAME, so no
value stands in a command line. What the user's shell has set in this way for other containers is taken out.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PREFIX = "APPTAINERENV_"
_FOREIGN = (_PREFIX, "SINGULARITYENV_")


def environment(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """What apptainer is given: ``environ``, with the variables of the container under apptainer's names."""
    own = {key: value for key, value in environ.items() if not key.startswith(_FOREIGN)}
    return {**own, **{_PREFIX + name: environ[name] for name in names if name in environ}}


def main(home: str, names: str, *command: str) -> None:
    """Make the folder and become apptainer. Raises OSError."""
    try:
        Path(home).mkdir(0o700)
    except FileExistsError:
        # Of an earlier start of the same program; somebody else's would be a trap.
        found = Path(home).lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            sys.exit(f"{home} is not ours")
    os.execvpe(command[0], command, environment(os.environ, names.split(",")))


if __name__ == "__main__":
    main(*sys.argv[1:])
