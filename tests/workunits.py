"""How ``pytest -n N`` divides the tests: a file is run by one process, since its tests share what is dear to make.

Not pytest-xdist's own ``--dist loadgroup``: its 3.8 does not see the groups with pytest 9.2.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

# Long files whose tests share nothing that is not made anew in a second or two.
SINGLE = ("slurm/test_cancel.py", "slurm/test_docs.py", "cli/test_shipped.py", "gpu/test_one_card.py")


def unit(nodeid: str) -> str:
    """What is run by one process, one after the other."""
    path = nodeid.partition("::")[0]
    if path.endswith(SINGLE):
        return nodeid
    if path.endswith("slurm/test_states.py"):  # a cluster for each kind of accounting
        return path + "".join(re.findall(r"\[\w+", nodeid))
    return path


def scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler of pytest-xdist that keeps units together."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False  # conftest.py has put the longest first
    return Units(config, log)
