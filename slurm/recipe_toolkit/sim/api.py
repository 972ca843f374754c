"""The routes of vLLM's API server that clients, routers and launchers use."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from recipe_toolkit import __version__
from recipe_toolkit.sim import prompts
from recipe_toolkit.sim.answer import Answer, Choice, internal_error
from recipe_toolkit.sim.faults import Faults
from recipe_toolkit.sim.flags import Flags
from recipe_toolkit.sim.frontend import EngineDead, Frontend
from recipe_toolkit.sim.http import Exchange
from recipe_toolkit.sim.messages import Submission
from recipe_toolkit.sim.options import Options
from recipe_toolkit.sim.request import ApiError, Limits, check_model, read_ask, read_json, read_prompts

VERSION = f"{__version__}+sim"
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class Api:
    """Answers requests. ``on_dead`` is called once the engine must end because workers are lost."""

    def __init__(
        self, flags: Flags, options: Options, faults: Faults, frontend: Frontend, on_dead: Callable[[], None]
    ) -> None:
        self._flags = flags
        self._faults = faults
        self._frontend = frontend
        self._on_dead = on_dead
        self._started = int(time.time())
        self._key = flags["api-key"] or os.environ.get("VLLM_API_KEY")
        self._details = bool(flags["enable-prompt-tokens-details"])
        self._answer_tokens = int(options["answer_tokens"])
        post, get = ("POST",), ("GET", "HEAD")
        self._routes: dict[str, tuple[tuple[str, ...], Callable[[Exchange], Awaitable[None]]]] = {
            "/health": (get, self._empty),
            "/ping": (("GET", "POST"), self._empty),
            "/version": (get, self._version),
            "/load": (get, self._load),
            "/metrics": (get, self._metrics),
            "/v1/models": (get, self._models),
            "/v1/completions": (post, self._completion),
            "/v1/chat/completions": (post, self._chat),
            "/tokenize": (post, self._tokenize),
            "/detokenize": (post, self._detokenize),
        }

    @property
    def _limits(self) -> Limits:
        names = self._flags.served_names
        if self._faults.active("wrong_model"):
            names = tuple(f"not-{name}" for name in names)
        return Limits(names, self._flags["max-model-len"], self._answer_tokens)

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request; a hanging process never does."""
        if self._faults.active("hang"):
            await asyncio.get_running_loop().create_future()
        methods, route = self._routes.get(exchange.path, ((), self._empty))
        if not methods:
            exchange.reply_json(404, {"detail": "Not Found"})
        elif exchange.method not in methods:
            exchange.reply_json(405, {"detail": "Method Not Allowed"})
        elif not self._allowed(exchange):
            exchange.reply_json(401, {"error": "Unauthorized"})
        else:
            try:
                await route(exchange)
            except ApiError as error:
                exchange.reply_json(error.status, error.to_json())

    def _allowed(self, exchange: Exchange) -> bool:
        if not self._key or not exchange.path.startswith("/v1"):
            return True
        return exchange.headers.get("authorization") == f"Bearer {self._key}"

    async def _empty(self, exchange: Exchange) -> None:
        exchange.reply(200)

    async def _version(self, exchange: Exchange) -> None:
        exchange.reply_json(200, {"version": VERSION})

    async def _load(self, exchange: Exchange) -> None:
        exchange.reply_json(200, {"server_load": self._frontend.open_requests})

    async def _metrics(self, exchange: Exchange) -> None:
        text = self._frontend.metrics.render().encode()
        exchange.reply(200, text, "text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, exchange: Exchange) -> None:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "vllm",
                "root": self._flags.model,
                "parent": None,
                "max_model_len": self._flags["max-model-len"],
                "permission": [],
            }
            for name in self._limits.models
        ]
        exchange.reply_json(200, {"object": "list", "data": cards})

    async def _tokenize(self, exchange: Exchange) -> None:
        data = read_json(exchange.body)
        check_model(data, self._limits)
        found = read_prompts(data, chat="messages" in data)[0]
        ids = prompts.ids(found.words)
        strings = list(found.words) if data.get("return_token_strs") else None
        document = {"count": len(ids), "max_model_len": self._flags["max-model-len"], "tokens": ids}
        exchange.reply_json(200, {**document, "token_strs": strings})

    async def _detokenize(self, exchange: Exchange) -> None:
        data = read_json(exchange.body)
        check_model(data, self._limits)
        found = read_prompts({"prompt": data.get("tokens")}, chat=False)[0]
        exchange.reply_json(200, {"prompt": " ".join(found.words)})

    async def _completion(self, exchange: Exchange) -> None:
        await self._generate(exchange, chat=False)

    async def _chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, chat=True)

    async def _generate(self, exchange: Exchange, chat: bool) -> None:
        ask = read_ask(read_json(exchange.body), chat, self._limits)
        base = exchange.headers.get("x-request-id") or uuid.uuid4().hex
        answer = Answer(exchange, ask, f"{'chatcmpl' if chat else 'cmpl'}-{base}", self._details)
        submissions = self._submissions(answer, exchange.headers)
        # A generation that hangs has been accepted: a stream has begun.
        answer.start()
        try:
            for rank, submission in submissions:
                self._frontend.submit(rank, submission, answer.on_event(submission.id))
            await answer.finished
        except EngineDead:
            answer.fail(internal_error(_DEAD))
            self._on_dead()
        except ApiError as error:
            answer.fail(error)
        else:
            answer.end()
        finally:
            for _, submission in submissions:
                self._frontend.abort(submission.id)

    def _submissions(self, answer: Answer, headers: Mapping[str, str]) -> list[tuple[int, Submission]]:
        """A submission for each prompt, with its DP rank. Raises ApiError."""
        made = []
        block: int = self._flags["block-size"]
        kv: Mapping[str, Any] | None = answer.ask.kv
        for index, (prompt, (limit, reason)) in enumerate(zip(answer.ask.prompts, answer.ask.ends, strict=True)):
            try:
                rank = self._frontend.choose(headers.get("x-data-parallel-rank"))
            except ValueError as error:
                raise ApiError(400, "BadRequestError", str(error)) from error
            # vLLM adds random characters, so that a repeated X-Request-Id does no harm.
            name = f"{answer.id}-{index}-{uuid.uuid4().hex[:8]}"
            hashes = tuple(prompts.block_hashes(prompt, block))
            answer.choices[name] = Choice(index, prompt, empty=self._faults.active("wrong_answer", rank))
            made.append((rank, Submission(name, len(prompt), limit, reason, prompt.seed, hashes, kv)))
        return made
