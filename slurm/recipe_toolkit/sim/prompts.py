"""Prompts and answers as tokens: a word is a token, and an answer is a function of its prompt.

The tokenizer in ``sim/tokenizer`` splits at white space, one token a word, unknown words included,
so that every client counts what is counted here. Its chat template joins the contents of the
messages with blanks and adds nothing. Answers do not depend on temperature or seed: a prompt has
one answer, whichever rank gives it, so that prefill/decode is comparable with aggregated serving.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).parent / "tokenizer"
UNKNOWN = "<unk>"
END = "</s>"
ANSWER_WORDS = 1000

# Special tokens are tokens of their own even inside a word.
_SPECIAL = re.compile(f"({UNKNOWN}|{END})")
_MASK = (1 << 64) - 1
_ANSWERS = [f" w{number}" for number in range(ANSWER_WORDS)]


@dataclass(frozen=True)
class Prompt:
    """``words``: the tokens. ``seed``: 64 bits of hash over all of them, which decides the answer."""

    words: tuple[str, ...]
    seed: int

    def __len__(self) -> int:
        return len(self.words)


@lru_cache(maxsize=1)
def vocabulary() -> dict[str, int]:
    """Word to token id, as the tokenizer has it. Raises OSError where it is not installed."""
    data = json.loads((TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))
    words: dict[str, int] = data["model"]["vocab"]
    return words


@lru_cache(maxsize=1)
def _by_id() -> list[str]:
    words = vocabulary()
    return sorted(words, key=words.__getitem__)


def from_text(text: str) -> Prompt:
    """The prompt of a text."""
    if "<" in text:
        text = _SPECIAL.sub(r" \1 ", text)
    return _prompt(tuple(text.split()))


def from_ids(ids: Sequence[int]) -> Prompt:
    """The prompt of token ids. Raises ValueError for an id that is not in the vocabulary."""
    words = _by_id()
    for number in ids:
        if not 0 <= number < len(words):
            raise ValueError(f"Token id {number} is out of vocabulary")
    return _prompt(tuple(words[number] for number in ids))


def from_messages(messages: Sequence[Any]) -> Prompt:
    """The prompt of a chat: the contents of its messages. Raises ValueError if one is no message."""
    texts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            texts += [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        elif isinstance(content, str):
            texts.append(content)
        else:
            raise ValueError("a message needs a content of text")
    return from_text(" ".join(texts))


def _prompt(words: tuple[str, ...]) -> Prompt:
    digest = hashlib.blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return Prompt(words, int.from_bytes(digest, "big"))


def ids(words: Sequence[str]) -> list[int]:
    """Token ids of words; a word outside the vocabulary is the unknown token."""
    table = vocabulary()
    unknown = table[UNKNOWN]
    return [table.get(word, unknown) for word in words]


def block_hashes(prompt: Prompt, block_size: int) -> list[int]:
    """A hash for each full block of the prompt, over everything up to its end."""
    hashes: list[int] = []
    running = hashlib.blake2b(digest_size=8)
    for start in range(0, len(prompt.words) - block_size + 1, block_size):
        block = " ".join(prompt.words[start : start + block_size])
        running.update(block.encode("utf-8", "surrogatepass") + b"\0")
        hashes.append(int.from_bytes(running.copy().digest(), "big"))
    return hashes


def answer_word(seed: int, index: int) -> str:
    """Token ``index`` of the answer, with its leading blank."""
    return _ANSWERS[mix(seed, index) % ANSWER_WORDS]


def answer_ids(seed: int, start: int, count: int) -> list[int]:
    """Token ids of ``count`` answer tokens from ``start``."""
    return ids([answer_word(seed, index).strip() for index in range(start, start + count)])


def mix(seed: int, index: int) -> int:
    """32 well-mixed bits of the seed and an index (the finalizer of MurmurHash3)."""
    value = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    return value >> 32
