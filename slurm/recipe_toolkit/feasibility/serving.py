"""Model, roles, KV transfer and router against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_toolkit.faults import Fault, FieldPath, shown
from recipe_toolkit.recipe import Engine, Model, Recipe, Role
from recipe_toolkit.vllm_args import canonical

# The hub's own rule for names (huggingface_hub, validate_repo_id), save its length.
_HUB = re.compile(r"hf:[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*(@[A-Za-z0-9_][\w./-]*)?", re.ASCII)
_LONGEST_PATH = 4095  # bytes; Linux' PATH_MAX with its NUL

# What vLLM hashes when prefill and decode shake hands (nixl/metadata.py, compute_nixl_compatibility_hash),
# as far as flags decide it, with the value that stands for a flag that is not written.
_HANDSHAKE: dict[str, Any] = {
    "dtype": "auto",
    "kv-cache-dtype": "auto",
    "attention-backend": None,
    "hf-overrides": None,
}
# These have defaults that vLLM works out by itself: compared where both sides write them.
_HANDSHAKE_WRITTEN = ("disable-hybrid-kv-cache-manager",)


def check_engine(engine: Engine) -> Iterator[Fault]:
    """Whether the image is a name that a container runtime can be told."""
    message = word_fault(engine.image or "x")
    if message:
        yield Fault(("engine", "image"), message, "a name such as vllm/vllm-openai:v0.32.0@sha256:...")


def check_model(model: Model) -> Iterator[Fault]:
    """Whether paths mean the same on every node, and the name can be said in a flag, a request and a metric."""
    message = word_fault(model.served_name, ",")
    if message:
        yield Fault(("model", "served_name"), message, "clients ask for it: one word, without commas")
    for name, path in (("path", model.path), ("tokenizer", model.tokenizer)):
        if path is not None:
            message = path_fault(path)
            if message:
                hint = "an absolute path, an alias of the profile's `models`, or hf:ORG/REPO[@REVISION]"
                yield Fault(("model", name), message, hint)


def word_fault(text: str, signs: str = "") -> str | None:
    """Why ``text`` is no single word of a command line, or None; ``signs``: what else it may not hold."""
    if text.startswith("-"):
        return f"{shown(text)} begins with -, as a flag does"
    bad = next((sign for sign in text if sign in signs or sign.isspace() or not sign.isprintable()), None)
    return None if bad is None else f"{shown(text)} holds {bad!a}"


def path_fault(path: str) -> str | None:
    """Why ``path`` names no model, or None."""
    if path.startswith("-"):
        return f"{shown(path)} begins with -, as a flag does"
    bad = next((sign for sign in path if not sign.isprintable()), None)
    if bad is not None:
        return f"{shown(path)} holds {bad!a}"
    if len(path.encode()) > _LONGEST_PATH:
        return f"{shown(path)} is longer than {_LONGEST_PATH} bytes"
    if path.startswith("hf:"):
        return None if _HUB.fullmatch(path) else f"{shown(path)} is not of the form hf:ORG/REPO[@REVISION]"
    if "/" in path and not path.startswith("/"):
        return f"{shown(path)} is a relative path"
    return None


def check_roles(recipe: Recipe) -> Iterator[Fault]:
    """``serve`` stands alone; ``prefill`` and ``decode`` come together."""
    roles = {role.name: role for role in recipe.roles}
    if "serve" in roles and len(roles) > 1:
        yield Fault(("roles", "serve"), "serve stands alone, without prefill and decode", key=True)
    elif len(roles) == 1 and "serve" not in roles:
        (name,) = roles
        other = "decode" if name == "prefill" else "prefill"
        yield Fault(("roles", other), f"missing: {name} needs it", "serve does both in one role", absent=True)


def _pair(recipe: Recipe) -> tuple[Role, Role] | None:
    roles = {role.name: role for role in recipe.roles}
    return (roles["prefill"], roles["decode"]) if roles.keys() >= {"prefill", "decode"} else None


def check_tp(recipe: Recipe) -> Iterator[Fault]:
    """The tensor parallel sizes of prefill and decode divide one another (vLLM's kv_connector/utils.py)."""
    pair = _pair(recipe)
    if pair is None:
        return
    prefill, decode = pair
    sizes = sorted((prefill.parallel.tp, decode.parallel.tp))
    if sizes[1] % sizes[0]:
        yield Fault(
            ("roles", "decode", "parallel", "tp"),
            f"tp {decode.parallel.tp} of decode and tp {prefill.parallel.tp} of prefill do not divide one another",
            "the KV cache of one rank must map to whole ranks of the other side",
        )


def check_handshake(recipe: Recipe) -> Iterator[Fault]:
    """Prefill and decode agree on every flag that NIXL's handshake compares."""
    pair, kv = _pair(recipe), recipe.kv_transfer
    if pair is None or kv is None or kv.connector != "nixl" or kv.extra.get("enforce_handshake_compat") is False:
        return
    prefill, decode = pair
    sides = [effective_args(recipe, role) for role in pair]
    for flag in (*_HANDSHAKE, *_HANDSHAKE_WRITTEN):
        default = _HANDSHAKE.get(flag)
        one, other = (_compared(side, flag, default) for side in sides)
        if one != other and (flag in _HANDSHAKE or all(flag in side for side in sides)):
            role = next((role for role in (decode, prefill) if _said_by(role, flag)), decode)
            yield Fault(
                ("roles", role.name, "args", *(_said_by(role, flag) or (flag,))),
                f"prefill has {flag} {_value(one)}, decode {_value(other)}: NIXL refuses the handshake",
                f"write {flag} once, in engine.args",
                key=True,
            )


def _compared(side: Mapping[str, Any], flag: str, default: Any) -> Any:
    """What a side has: the attention backend may stand in attention-config too, and vLLM reads its name in any case."""
    value = side.get(flag, default)
    if flag != "attention-backend":
        return value
    config = side.get("attention-config")
    if value is None and isinstance(config, Mapping):
        value = config.get("backend")
    return value.upper() if isinstance(value, str) else value


def _said_by(role: Role, flag: str) -> tuple[str, ...] | None:
    """The keys below the role's args where it says a flag that is compared."""
    key = _spelling(role.args, flag)
    if key is not None:
        return (key,)
    outer = _spelling(role.args, "attention-config") if flag == "attention-backend" else None
    config = role.args.get(outer) if outer else None
    return (outer, "backend") if outer and isinstance(config, Mapping) and "backend" in config else None


def check_blocks(recipe: Recipe) -> Iterator[Fault]:
    """A decode block holds whole prefill blocks (vLLM's kv_connector/utils.py, block_size_ratio)."""
    pair, kv = _pair(recipe), recipe.kv_transfer
    if pair is None or kv is None or kv.connector != "nixl":
        return
    prefill, decode = pair
    one, other = (effective_args(recipe, role).get("block-size") for role in pair)
    if isinstance(one, int) and isinstance(other, int) and one > 0 and other % one:
        role = decode if _spelling(decode.args, "block-size") else prefill
        yield Fault(
            ("roles", role.name, "args", _spelling(role.args, "block-size") or "block-size"),
            f"block-size {other} of decode is no multiple of block-size {one} of prefill: NIXL hands whole blocks over",
            "write block-size once, in engine.args",
            key=True,
        )


def _value(value: Any) -> str:
    return "unset" if value is None else shown(value)


def effective_args(recipe: Recipe, role: Role) -> dict[str, Any]:
    """Flags of a role over those of the engine, each with dashes as vLLM's help spells it."""
    merged = {canonical(key): value for args in (recipe.engine.args, role.args) for key, value in args.items()}
    config = merged.get("speculative-config")
    if isinstance(config, Mapping):
        # vLLM reads its keys with dashes too.
        merged["speculative-config"] = {str(key).replace("-", "_"): value for key, value in config.items()}
    return merged


def where_set(recipe: Recipe, role: Role, flag: str, *inner: str) -> FieldPath:
    """Where a role's flag is said, or the key ``inner`` of its document: in its own args, or the engine's."""
    for at, args in ((("roles", role.name, "args"), role.args), (("engine", "args"), recipe.engine.args)):
        key = _spelling(args, flag)
        if key is not None:
            return (*at, key, *inner)
    return ("roles", role.name)


def _spelling(args: Mapping[str, Any], flag: str) -> str | None:
    return next((key for key in args if canonical(key) == flag), None)


def check_kv_transfer(recipe: Recipe) -> Iterator[Fault]:
    """KV transfer is for prefill and decode, and on a device that the connector knows."""
    kv, at = recipe.kv_transfer, ("kv_transfer",)
    apart = {role.name for role in recipe.roles} >= {"prefill", "decode"}
    if kv is None:
        if apart:
            yield Fault(
                at, "missing: prefill hands its KV cache to decode", "kv_transfer: {connector: nixl}", absent=True
            )
        return
    if kv.connector == "decode-bench":
        if apart:
            hint = "decode alone stands in roles.serve"
            yield Fault((*at, "connector"), "decode-bench takes the place of prefill", hint)
        return
    if not apart:
        hint = "leave it out, or split serve into prefill and decode"
        yield Fault(at, "there is no prefill and decode to move KV between", hint, key=True)
        return
    # vLLM's nixl/utils.py: cuda engines take cuda or cpu buffers, cpu engines take cpu.
    if recipe.resources.device == "cpu" and kv.buffer_device not in (None, "cpu"):
        yield Fault((*at, "buffer_device"), f"{kv.buffer_device} buffers on device cpu", "buffer_device: cpu")
    if kv.connector == "example":
        yield from _check_example(recipe)
        if "shared_storage_path" in kv.extra:
            message = "cannot be set: the files lie in the run folder"
            yield Fault((*at, "extra", "shared_storage_path"), message, "leave it out", key=True)


def _check_example(recipe: Recipe) -> Iterator[Fault]:
    for role in recipe.roles:
        if role.parallel.tp > 1:
            yield Fault(
                ("roles", role.name, "parallel", "tp"),
                f"tp {role.parallel.tp} with the connector example: all ranks write a layer to the same file",
                "connector: nixl, or tp: 1",
            )


def check_router(recipe: Recipe) -> Iterator[Fault]:
    """More than one place to send requests to needs a router, and some policies need several."""
    router = recipe.router
    apart = recipe.disaggregated
    instances = sum(role.instances for role in recipe.roles)
    hybrid = any(role.parallel.dp_lb == "hybrid" for role in recipe.roles)
    at: FieldPath = ("router", "kind")
    if router.kind == "none" and (apart or instances > 1 or hybrid):
        what = "prefill and decode" if apart else f"{instances} instances" if instances > 1 else "one API server a node"
        yield Fault(at, f"{what} need a router", "kind: vllm-router")
    if router.kind != "none" and router.policy == "power_of_two" and (apart or instances > 1):
        for role in recipe.roles:
            if role.instances < 2 and role.parallel.dp_lb != "hybrid":
                hint = "policy: round_robin, or more instances"
                yield Fault(
                    ("router", "policy"), f"power_of_two chooses between two, and {role.name} has one instance", hint
                )
