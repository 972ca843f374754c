"""How KV moves in a recipe of srt-slurm: ``connector`` of the engine, or vLLM's own flag in each role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recipe_toolkit.importers.draft import Draft
from recipe_toolkit.importers.notes import CHANGED, LOST, SET, UNNEEDED
from recipe_toolkit.importers.reader import Cursor
from recipe_toolkit.importers.vllm_flags import Flags

_NIXL = "NixlConnector"
_AUTOMATIC = {
    "kv_role": "it follows from the role",
    "engine_id": "each engine names itself",
    "kv_rank": "the plan places the ranks",
    "kv_parallel_size": "the plan places the ranks",
    "kv_ip": "each process is given its own node's address",
    "kv_port": "ports are reserved on each node when the run begins",
}
_DEVICES = ("cuda", "xpu", "cpu")


KV_FLAGS = ("kv-transfer-config", "connector")


def kv_flag(flags: Flags) -> Cursor | None:
    """What one role says of KV: vLLM's flag, or the second format's short name for it."""
    found = [flags.elsewhere[name] for name in KV_FLAGS if name in flags.elsewhere]
    for extra in found[1:]:
        extra.note(UNNEEDED, "kv-transfer-config comes before it")
    return found[0] if found else None


def read_kv(connector: Cursor, sides: Mapping[str, Cursor], apart: bool, draft: Draft) -> None:
    """``sides``: what each role says itself. ``connector``, of the engine, holds where a role says nothing."""
    if not apart:
        _alone(connector, sides)
        return
    draft.set(("kv_transfer", "connector"), "nixl", connector if connector.given else None)
    if connector.given and len(sides) < 2:
        sides = {role: sides.get(role, connector) for role in ("prefill", "decode")}
    elif connector.given:
        connector.note(UNNEEDED, "each role's own flag comes before it")
    connector.use()
    read = {cursor.path: _side(cursor) for cursor in sides.values()}
    settings = {role: read[cursor.path] for role, cursor in sides.items()}
    for key, field in (
        ("kv_load_failure_policy", "load_failure_policy"),
        ("kv_buffer_device", "buffer_device"),
        ("kv_connector_extra_config", "extra"),
    ):
        _both(key, field, settings, sides, draft)


def _alone(connector: Cursor, sides: Mapping[str, Cursor]) -> None:
    if connector.given:
        connector.note(UNNEEDED, "one role does prefill and decode: KV stays where it is")
    connector.use()
    for cursor in sides.values():
        name = _document(cursor.value).get("kv_connector", "a KV connector")
        cursor.note(LOST, f"{name} beside a role that does both has no place: the KV cache ends with the GPUs' memory")


def _document(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _side(cursor: Cursor) -> dict[str, Any]:
    """NIXL's settings of one role; what stands beside it is noted."""
    value = cursor.use()
    if isinstance(value, str) and value.lower() == "nixl":
        return {}
    document = _document(value)
    name = document.get("kv_connector")
    if name == "MultiConnector":
        document = _inner(document, cursor)
    elif name != _NIXL:
        cursor.note(LOST, "KV moves by NIXL in its place")
        return {}
    rest = dict(document)
    rest.pop("kv_connector", None)
    found = {}
    for key, value in rest.items():
        if key in _AUTOMATIC:
            cursor.source.note(SET, (*cursor.path, key), value, _AUTOMATIC[key])
        elif _fits(key, value):
            found[key] = value
        else:
            cursor.source.note(LOST, (*cursor.path, key), value, "a recipe has no place for it in kv_transfer")
    return found


def _fits(key: str, value: Any) -> bool:
    if key == "kv_connector_extra_config":
        return isinstance(value, dict)
    if key == "kv_buffer_device":
        return value in _DEVICES
    return key == "kv_load_failure_policy" and value in ("fail", "recompute")


def _inner(document: dict[str, Any], cursor: Cursor) -> dict[str, Any]:
    """NIXL out of several connectors."""
    extra = document.get("kv_connector_extra_config")
    several = extra.get("connectors") if isinstance(extra, dict) else None
    chosen: dict[str, Any] = {}
    for item in several if isinstance(several, list) else []:
        one = item if isinstance(item, dict) else {}
        if one.get("kv_connector") == _NIXL and not chosen:
            chosen = one
        else:
            name = one.get("kv_connector", "another connector")
            message = f"{name} beside NIXL has no place: the KV cache ends with the GPUs' memory"
            cursor.source.note(LOST, (*cursor.path, "kv_connector_extra_config"), item, message)
    if not chosen:
        cursor.note(LOST, "KV moves by NIXL in its place")
    outer = {key: value for key, value in document.items() if key == "kv_load_failure_policy"}
    return {**outer, **chosen}


def _both(
    key: str, field: str, settings: Mapping[str, dict[str, Any]], sides: Mapping[str, Cursor], draft: Draft
) -> None:
    """A recipe has one value for both sides: the one of decode, which fetches, where they differ."""
    given = {role: side[key] for role, side in settings.items() if key in side}
    if not given:
        return
    role = "decode" if "decode" in given else "prefill"
    draft.set(("kv_transfer", field), given[role], sides[role])
    for other, value in given.items():
        if value != given[role]:
            path = (*sides[other].path, key)
            kind = CHANGED if key == "kv_load_failure_policy" else LOST
            sides[other].source.note(kind, path, value, f"one value holds for both sides, that of {role}")
