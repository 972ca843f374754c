"""What a completion or chat request asks for, and the refusals, in vLLM's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.sim import prompts
from recipe_toolkit.sim.prompts import Prompt

_DEFAULT_MAX_TOKENS = 16


class ApiError(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def to_json(self) -> dict[str, Any]:
        """vLLM's shape of an error."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


def bad(message: str, param: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, "BadRequestError", message, param)


@dataclass(frozen=True)
class Limits:
    """What the server allows. ``answer_tokens``: where answers end by themselves (0: never)."""

    models: tuple[str, ...]
    max_model_len: int
    answer_tokens: int


@dataclass(frozen=True)
class Ask:
    """A request that is accepted. ``ends``: for each prompt, how many tokens and why it ends there."""

    chat: bool
    model: str
    prompts: tuple[Prompt, ...]
    ends: tuple[tuple[int, str], ...]
    stream: bool = False
    usage: bool = False
    running_usage: bool = False
    token_ids: bool = False
    kv: Mapping[str, Any] | None = None


def read_json(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises ApiError."""
    try:
        data = json.loads(body)
    except ValueError as error:
        raise bad(f"JSON decode error: {error}") from error
    if not isinstance(data, dict):
        raise bad("the body is not a JSON object")
    return data


def read_ask(data: Mapping[str, Any], chat: bool, limits: Limits) -> Ask:
    """Check a request. Raises ApiError."""
    model = check_model(data, limits)
    if _integer(data, "n", 1) != 1:
        raise bad("the simulated engine gives one answer: n must be 1", "n")
    asked = read_prompts(data, chat)
    kv = data.get("kv_transfer_params")
    if kv is not None and not isinstance(kv, dict):
        raise bad("kv_transfer_params is not an object", "kv_transfer_params")
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad("stream_options is not an object", "stream_options")
    stream = bool(data.get("stream"))
    if options and not stream:
        raise bad("Stream options can only be defined when `stream=True`.", "stream_options")
    return Ask(
        chat=chat,
        model=model,
        prompts=asked,
        ends=tuple(_end(data, chat, len(prompt), limits) for prompt in asked),
        stream=stream,
        usage=bool(options.get("include_usage")),
        running_usage=bool(options.get("continuous_usage_stats")),
        token_ids=bool(data.get("return_token_ids")),
        kv=kv,
    )


def check_model(data: Mapping[str, Any], limits: Limits) -> str:
    """The model asked for, the first one if none is. Raises ApiError if it is not served."""
    model = data.get("model") or limits.models[0]
    if model not in limits.models:
        names = ", ".join(limits.models)
        message = f"The model `{model}` does not exist. Valid aliases: {names}."
        raise ApiError(404, "NotFoundError", message, "model")
    return str(model)


def read_prompts(data: Mapping[str, Any], chat: bool) -> tuple[Prompt, ...]:
    """The prompts of a request: one of text, of ids or of messages, or several. Raises ApiError."""
    field = "messages" if chat else "prompt"
    given = data.get(field)
    try:
        if chat:
            if not isinstance(given, list):
                raise ValueError("messages is not a list")
            found = [prompts.from_messages(given)]
        elif isinstance(given, str):
            found = [prompts.from_text(given)]
        elif isinstance(given, list) and given and all(_is_integer(item) for item in given):
            found = [prompts.from_ids(given)]
        elif isinstance(given, list):
            found = [_one_of_many(item) for item in given]
        else:
            raise ValueError("prompt is neither a text nor a list")
    except ValueError as error:
        raise bad(str(error), field) from error
    if not found or any(not len(prompt) for prompt in found):
        raise bad("The prompt cannot be empty", field)
    return tuple(found)


def _one_of_many(item: Any) -> Prompt:
    if isinstance(item, str):
        return prompts.from_text(item)
    if isinstance(item, list) and all(_is_integer(number) for number in item):
        return prompts.from_ids(item)
    raise ValueError("a prompt of the list is neither a text nor a list of token ids")


def _end(data: Mapping[str, Any], chat: bool, prompt_tokens: int, limits: Limits) -> tuple[int, str]:
    longest = limits.max_model_len
    room = longest - prompt_tokens
    if room <= 0:
        raise bad(
            f"This model's maximum context length is {longest} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
        )
    name = "max_completion_tokens" if chat and data.get("max_completion_tokens") is not None else "max_tokens"
    limit = _integer(data, name, room if chat or name in data else min(_DEFAULT_MAX_TOKENS, room))
    least = _integer(data, "min_tokens", 0)
    if limit < 1:
        raise bad(f"max_tokens must be at least 1, got {limit}.", name)
    if least > limit:
        raise bad(f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.", "min_tokens")
    if limit > room:
        raise bad(
            f"This model's maximum context length is {longest} tokens. However, you requested {limit} output "
            f"tokens and your prompt contains {prompt_tokens} input tokens, for a total of "
            f"{prompt_tokens + limit} tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens.",
            "input_tokens",
        )
    natural = max(limits.answer_tokens, least)
    if limits.answer_tokens and not data.get("ignore_eos") and natural < limit:
        return natural, "stop"
    return limit, "length"


def _integer(data: Mapping[str, Any], name: str, default: int) -> int:
    value = data.get(name)
    if value is None:
        return default
    if not _is_integer(value):
        raise bad(f"{name} is not a whole number: {value!r}", name)
    return int(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
