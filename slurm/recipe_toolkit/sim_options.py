"""The keys of ``engine.sim`` and of a role's ``sim``: what each means, in which unit, and its default.

Only the standard library is imported: the loader checks recipes by this table, and the simulated
engine reads its ``--sim`` document by it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Key:
    """One key. ``minimum`` is allowed unless ``positive``. ``integer``: no fractions."""

    description: str
    default: float
    positive: bool = False
    integer: bool = False
    maximum: float | None = None


KEYS: Mapping[str, Key] = {
    "ttft_base_ms": Key("time of one prefill beside its tokens, ms", 20.0),
    "prefill_tokens_per_s": Key("prompt tokens that one DP rank prefills in a second", 50000.0, positive=True),
    "tpot_base_ms": Key("time of one decode step, ms", 8.0),
    "tpot_per_seq_ms": Key("what each running sequence adds to a decode step, ms", 0.1),
    "startup_s": Key("time from the start of the process until it serves, s", 0.5),
    "kv_transfer_ms": Key("time of one KV transfer beside its bytes, ms", 3.0),
    "kv_bytes_per_token": Key("KV of one token, bytes", 65536, integer=True),
    "kv_bytes_per_s": Key("speed of one KV transfer, bytes/s", 25e9, positive=True),
    "kv_cache_tokens": Key("tokens that the KV cache of one DP rank holds", 262144, positive=True, integer=True),
    "handshake_failures": Key("how many first NIXL handshakes of each DP rank time out", 0, integer=True),
    "handshake_timeout_s": Key("when a NIXL handshake gives up, s", 5.0, positive=True),
    "spec_acceptance": Key("chance that a draft token is accepted after the one before it", 0.7, maximum=1.0),
    "answer_tokens": Key(
        "length at which answers end by themselves without ignore_eos (0: never), tokens", 0, integer=True
    ),
}

FAULT_KINDS: Mapping[str, str] = {
    "exit": "the process ends with `code`",
    "hang": "the process stops answering, /health too",
    "hang_generate": "/health answers, generation does not",
    "never_ready": "the process never comes up",
    "wrong_model": "another model name is served",
    "wrong_answer": "answers are empty",
    "no_kv": "a prefill's answer carries no kv_transfer_params",
    "lost_kv": "the prefill side has lost the KV that a decode asks for",
    "ignore_term": "SIGTERM is ignored",
    "slow_load": "loading takes `load_s` longer, with the lines of its progress",
    "leak_kv": "KV blocks of requests that have ended are never free again",
    "leak_process": "a child process outlives it, and ignores SIGTERM",
}

FAULT_KEYS: Mapping[str, str] = {
    "kind": "what goes wrong",
    "after_s": "seconds from ready until it does (0: from the start)",
    "code": "exit code of the kind `exit`",
    "load_s": "how much longer loading takes (slow_load), seconds",
    "instance": "only in this instance of the role",
    "rank": "only in this process of the instance",
    "dp_rank": "only for this DP rank (hang_generate, wrong_answer, no_kv, lost_kv, leak_kv)",
}

# (key, message, hint)
Trouble = tuple[str, str, "str | None"]


def check(mapping: Mapping[str, Any]) -> list[Trouble]:
    """Everything wrong with the mapping; the key of a fault inside ``fault`` is ``fault.NAME``."""
    troubles: list[Trouble] = []
    for name, value in mapping.items():
        if name == "fault":
            troubles += _check_fault(value)
        elif name not in KEYS:
            troubles.append((name, "unknown key of the simulated engine", _hint(name, [*KEYS, "fault"])))
        else:
            troubles += [(name, message, KEYS[name].description) for message in _check_number(KEYS[name], value)]
    return troubles


def _check_number(key: Key, value: Any) -> Iterable[str]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        yield f"{value!r} is not a number"
    elif value < 0 or (key.positive and value == 0):
        yield f"{value} is not {'above' if key.positive else 'at least'} 0"
    elif key.integer and value != int(value):
        yield f"{value} is not a whole number"
    elif key.maximum is not None and value > key.maximum:
        yield f"{value} is above {key.maximum:g}"


def _check_fault(fault: Any) -> list[Trouble]:
    if not isinstance(fault, Mapping):
        return [("fault", "not a mapping", "e.g. fault: {kind: exit, after_s: 5, code: 3}")]
    troubles: list[Trouble] = []
    for name, value in fault.items():
        where = f"fault.{name}"
        if name not in FAULT_KEYS:
            troubles.append((where, "unknown key of a fault", _hint(name, FAULT_KEYS)))
        elif name == "kind":
            if value not in FAULT_KINDS:
                troubles.append((where, f"{value!r} is no kind of fault", _hint(str(value), FAULT_KINDS)))
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            troubles.append((where, f"{value!r} is not a number of at least 0", FAULT_KEYS[name]))
        elif name not in ("after_s", "load_s") and value != int(value):
            troubles.append((where, f"{value} is not a whole number", FAULT_KEYS[name]))
        elif name == "code" and value > 255:
            troubles.append((where, f"{value} is above 255", "exit codes are 0 to 255"))
    if "kind" not in fault:
        troubles.append(("fault", "has no kind", f"one of {', '.join(FAULT_KINDS)}"))
    return troubles


def _hint(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean `{close[0]}`?" if close else f"known: {', '.join(known)}"
