"""What stands before the engines in srt-slurm, and the services that Dynamo needs."""

from __future__ import annotations

from recipe_toolkit.importers.draft import Draft
from recipe_toolkit.importers.env import read_env
from recipe_toolkit.importers.notes import CHANGED, LOST, SET, UNNEEDED
from recipe_toolkit.importers.profile import ProfileDraft
from recipe_toolkit.importers.reader import Cursor
from recipe_toolkit.plan.router import RESERVED

_NO_DYNAMO = "Dynamo is not used"
_POLICIES = {"round-robin": "round_robin", "random": "random"}
_ALIKE = {"kv": "cache_aware", "least-loaded": "power_of_two", "power-of-two": "power_of_two"}
_ROUTING = ("router-", "active-", "kv-cache-block-size", "tokenizer")
_DYNAMO_SERVICES = ("etcd", "nats")


def read_frontend(root: Cursor, draft: Draft, profile: ProfileDraft, several: bool) -> None:
    """Read ``frontend``, ``dynamo``, ``infra`` and ``services``. ``several``: more than one place to send to."""
    frontend = root.at("frontend")
    kind = frontend.at("type").text() or "dynamo"
    if kind == "dynamo":
        instead = "vllm-router" if several else "vLLM's own server"
        root.source.note(CHANGED, frontend.at("type").path, kind, f"{instead} takes the requests")
        _dynamo_args(frontend.at("args"), draft, several)
    elif kind == "vllm-router":
        _router_args(frontend.at("args"), draft)
    elif kind == "vllm":
        for _, item in frontend.at("args").items():
            item.note(LOST, "there is no router to take it")
    else:
        frontend.at("type").problem(f"frontend {kind} is not one that a recipe can name", "dynamo, vllm or vllm-router")
    read_env(frontend.at("env"), ("router", "env"), draft, profile)
    _replicas(frontend, kind)
    _discovery(root)


def _dynamo_args(args: Cursor, draft: Draft, several: bool) -> None:
    for key, item in args.items():
        name, mode = key.replace("_", "-"), item.value
        if name == "router-mode" and not several:
            item.note(UNNEEDED, "there is one place to send requests to")
        elif name == "router-mode" and isinstance(mode, str) and mode in _POLICIES:
            draft.set(("router", "policy"), _POLICIES[mode], item)
            item.use()
        elif name == "router-mode" and _nearest(mode, draft):
            item.note(LOST, f"vllm-router's {_nearest(mode, draft)} is the nearest, and is used")
            draft.set(("router", "policy"), _nearest(mode, draft), item)
        elif item.value is None:
            item.note(UNNEEDED, "null passes no flag")
        elif not several and name.startswith(_ROUTING):
            item.note(UNNEEDED, "there is one place to send requests to")
        else:
            item.note(LOST, "a flag of Dynamo's frontend, which vllm-router has not" if several else _NO_DYNAMO)


def _nearest(mode: object, draft: Draft) -> str | None:
    """A policy that is much alike. power_of_two chooses between two, of each role."""
    policy = _ALIKE.get(mode) if isinstance(mode, str) else None
    return None if policy == "power_of_two" and "kv_transfer" in draft.data else policy


def _router_args(args: Cursor, draft: Draft) -> None:
    for key, item in args.items():
        name = key.lstrip("-").replace("_", "-")
        if name == "policy":
            draft.set(("router", "policy"), item.text(), item)
        elif name in RESERVED:
            item.note(SET, RESERVED[name])
        elif item.value is None or item.value is False:
            item.note(UNNEEDED, "false and null pass no flag")
        else:
            draft.set(("router", "args", name), item.use(), item)


def _replicas(frontend: Cursor, kind: str) -> None:
    """Several frontends behind nginx are srt-slurm's default."""
    many, number = frontend.at("enable_multiple_frontends"), frontend.at("num_additional_frontends")
    if many.flag(default=True) and kind != "vllm":
        message = f"{(number.integer() or 9) + 1} frontends behind nginx become one: it may bound high loads sooner"
        frontend.source.note(LOST, many.path, many.value if many.given else "true by default", message)
    elif number.given:
        number.note(UNNEEDED, "there is one frontend")
    else:
        number.use()
    for key, item in frontend.items():
        if key.startswith("nginx_"):
            item.note(LOST if item.value and many.flag(default=True) else UNNEEDED, "nginx is not used")
    placement = frontend.at("placement", "node")
    for item in (frontend.at("dedicated_node"), frontend.at("orchestrator_placement"), placement):
        if item.given and item.value not in (False, "head"):
            item.note(LOST, "the router runs on the first node, beside engines")
        item.use()


def _discovery(root: Cursor) -> None:
    for section in ("dynamo", "infra"):
        for _, item in root.at(section).items():
            item.note(UNNEEDED, _NO_DYNAMO)
    for item in root.at("services").entries():
        if any(item.at(key).value in _DYNAMO_SERVICES for key in ("type", "name")):
            item.note(UNNEEDED, _NO_DYNAMO)
        elif item.at("enabled").value is False:
            item.note(UNNEEDED, "it is switched off")
        else:
            item.note(LOST, "processes beside the engines have no place in a recipe")
