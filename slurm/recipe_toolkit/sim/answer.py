"""The answer to one request as it comes: server-sent events, or one JSON document at the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.sim import prompts
from recipe_toolkit.sim.http import Exchange
from recipe_toolkit.sim.messages import Event
from recipe_toolkit.sim.prompts import Prompt
from recipe_toolkit.sim.request import ApiError, Ask

FINGERPRINT = "recipe-toolkit-sim"


def internal_error(message: str = "Internal server error") -> ApiError:
    """A 500."""
    return ApiError(500, "InternalServerError", message)


@dataclass
class Choice:
    """The answer to one of the request's prompts so far."""

    index: int
    prompt: Prompt
    generated: int = 0
    salt: int = 0
    cached: int = 0
    reason: str | None = None
    kv: dict[str, Any] | None = None
    empty: bool = False

    def text(self, start: int, stop: int) -> str:
        """The words of answer tokens; none at all where the fault of wrong answers is on."""
        if self.empty:
            return ""
        seed = self.prompt.seed ^ self.salt
        return "".join([prompts.answer_word(seed, number) for number in range(start, stop)])

    def ids(self, start: int, stop: int) -> list[int]:
        """Ids of answer tokens."""
        return prompts.answer_ids(self.prompt.seed ^ self.salt, start, stop - start)


@dataclass
class Answer:
    """Takes the events of a request's prompts and answers ``exchange``."""

    exchange: Exchange
    ask: Ask
    id: str
    details: bool = False
    choices: dict[str, Choice] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = len(self.ask.prompts)
        kind = (
            ("chat.completion.chunk" if self.ask.stream else "chat.completion") if self.ask.chat else "text_completion"
        )
        self._common = {"id": self.id, "object": kind, "created": self.created, "model": self.ask.model}
        # Everything of a chunk before its choices is the same in all of them.
        self._prefix = "data: " + _dump(self._common)[:-1] + ',"choices":[{"index":'

    def start(self) -> None:
        """Send the head of a stream; errors that come later stand in the stream, as in vLLM."""
        if not self.ask.stream:
            return
        self.exchange.start_stream()

    def on_event(self, request_id: str) -> Callable[[Event], None]:
        """What takes the events of one prompt."""
        choice = self.choices[request_id]

        def take(event: Event) -> None:
            self._take(choice, event)

        return take

    def _take(self, choice: Choice, event: Event) -> None:
        if self.finished.done():
            return
        if event.info:
            choice.cached = event.info.get("cached", choice.cached)
            choice.salt = event.info.get("salt", choice.salt)
            choice.kv = event.info.get("kv")
        start, choice.generated = choice.generated, choice.generated + event.tokens
        choice.reason = event.reason
        if event.reason == "error":
            self.finished.set_exception(internal_error())
            return
        if self.ask.stream:
            self.exchange.write(self._chunk(choice, start).encode())
        if event.reason is not None:
            self._left -= 1
            if self._left == 0:
                self.finished.set_result(None)

    def _chunk(self, choice: Choice, start: int) -> str:
        """One event of a stream; words of answers need no escapes."""
        text, ids = choice.text(start, choice.generated), ""
        reason = f'"{choice.reason}"' if choice.reason else "null"
        if self.ask.token_ids:
            ids = f',"token_ids":{_dump(choice.ids(start, choice.generated))}'
        usage = f',"usage":{_dump(self._usage([choice]))}' if self.ask.running_usage else ""
        if not self.ask.chat:
            body = f'{choice.index},"text":"{text}","logprobs":null,"finish_reason":{reason},"stop_reason":null{ids}}}]'
            return f"{self._prefix}{body}{usage}}}\n\n"
        role = ""
        if start == 0:
            body = '0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            role = f"{self._prefix}{body}{usage}}}\n\n"
        tail = f',"stop_reason":null{ids}' if choice.reason else ids
        body = f'{choice.index},"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{reason}{tail}}}]'
        return f"{role}{self._prefix}{body}{usage}}}\n\n"

    def end(self) -> None:
        """Send what is left after the last token."""
        choices = list(self.choices.values())
        if not self.ask.stream:
            self.exchange.reply_json(200, self._document(choices))
            return
        if self.ask.usage:
            last = {**self._common, "choices": [], "usage": self._usage(choices), "system_fingerprint": FINGERPRINT}
            self.exchange.write(f"data: {_dump(last)}\n\n".encode())
        self.exchange.write(b"data: [DONE]\n\n")
        self.exchange.end_stream()

    def fail(self, error: ApiError) -> None:
        """Send an error: as the response, or inside the stream that has begun."""
        if not self.ask.stream:
            self.exchange.reply_json(error.status, error.to_json())
            return
        self.exchange.write(f"data: {_dump(error.to_json())}\n\ndata: [DONE]\n\n".encode())
        self.exchange.end_stream()

    def _usage(self, choices: list[Choice]) -> dict[str, Any]:
        prompt = sum(len(choice.prompt) for choice in choices)
        completion = sum(choice.generated for choice in choices)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if self.details:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(choice.cached for choice in choices)}
        return usage

    def _document(self, choices: list[Choice]) -> dict[str, Any]:
        shape = self._chat_choice if self.ask.chat else self._completion_choice
        kv = choices[-1].kv
        return {
            **self._common,
            "choices": [shape(choice) for choice in choices],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._usage(choices),
            **({"prompt_logprobs": None} if self.ask.chat else {}),
            "kv_transfer_params": kv,
        }

    def _completion_choice(self, choice: Choice) -> dict[str, Any]:
        ids = choice.ids(0, choice.generated) if self.ask.token_ids else None
        return {
            "index": choice.index,
            "text": choice.text(0, choice.generated),
            "logprobs": None,
            "finish_reason": choice.reason,
            "stop_reason": None,
            "token_ids": ids,
            "prompt_logprobs": None,
            "prompt_token_ids": prompts.ids(choice.prompt.words) if self.ask.token_ids else None,
        }

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": choice.text(0, choice.generated),
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": choice.reason,
            "stop_reason": None,
            "token_ids": choice.ids(0, choice.generated) if self.ask.token_ids else None,
        }


def _dump(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
