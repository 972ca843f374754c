"""Environment of foreign engines: the recipe's, the site's, and what Dynamo alone reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from recipe_toolkit.feasibility.variables import looks_secret, reserved
from recipe_toolkit.importers.draft import Draft
from recipe_toolkit.importers.notes import LOST, SET, UNNEEDED
from recipe_toolkit.importers.profile import ProfileDraft
from recipe_toolkit.importers.reader import Cursor

_DYNAMO = re.compile(r"DYN_|DYNAMO_|ETCD_|NATS_|SRT_")
# They name network cards or interfaces, or folders of one site's containers.
_SITE = frozenset(
    {
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "UCX_NET_DEVICES",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "TRANSFORMERS_CACHE",
    }
)
_PLACEHOLDER = re.compile(r"\{[A-Za-z_]+\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_env(cursor: Cursor, path: Sequence[str], draft: Draft, profile: ProfileDraft) -> None:
    """Read one mapping of variables into the draft's ``path``, and what is the site's into the profile."""
    for name, item in cursor.items():
        text = item.text()
        why = reserved(name)
        if text is None:
            item.note(UNNEEDED, "null sets no variable")
        elif _DYNAMO.match(name):
            item.note(UNNEEDED, "Dynamo is not used")
        elif why:
            item.note(SET, why)
        elif not _VARIABLE.fullmatch(name):
            item.note(LOST, "not the name of an environment variable")
        elif _PLACEHOLDER.search(text):
            item.note(LOST, "the value holds a placeholder that nobody fills in")
        elif looks_secret(name, text):
            profile.add(("secrets",), name, item)
        elif name in _SITE:
            profile.set(("env", name), text, item)
        else:
            draft.set((*path, name), text, item)
