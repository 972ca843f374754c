"""Entry point of ``python -m recipe_toolkit.sim``."""

from __future__ import annotations

import os
import sys

from recipe_toolkit.sim.flags import UsageError, layout, parse
from recipe_toolkit.sim.log import log
from recipe_toolkit.sim.options import parse as parse_options
from recipe_toolkit.sim.serve import run


def main() -> int:
    """Serve; the exit code: 2 for the command line, 1 where vLLM would not start, else the engine's."""
    try:
        flags = parse(sys.argv[1:])
        options = parse_options(flags.sim, os.environ)
    except UsageError as error:
        print(f"recipe_toolkit.sim: error: {error}", file=sys.stderr)
        return 2
    if flags.ignored:
        print(f"recipe_toolkit.sim: ignored: {' '.join(flags.ignored)}", file=sys.stderr)
    try:
        return run(flags, options, layout(flags))
    except ValueError as error:
        log(f"ValueError: {error}", "ERROR")
        return 1


raise SystemExit(main())
