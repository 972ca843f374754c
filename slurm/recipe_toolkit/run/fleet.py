"""The lead's view of the agents and of the programs that they run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.errors import ControlError, DeadlineError, RunError
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.run import control
from recipe_toolkit.run.control import Link, Message
from recipe_toolkit.run.tasks import race

_CALL_S = 60.0

log = logging.getLogger("recipe_toolkit.run")


@dataclass
class ProcessView:
    """What is known of one program. ``signs``: CPU ticks, bytes moved, log size; ``moved``: when they last changed."""

    name: str
    node: int
    log: str
    state: str = "pending"
    pid: int | None = None
    exit_code: int | None = None
    signs: tuple[int, ...] = ()
    moved: float = 0.0
    last: Message = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self, state: str) -> None:
        """Change the state of a program that has started, unless it has ended meanwhile."""
        if self.state == "starting":
            self.state = state

    def to_json(self) -> dict[str, Any]:
        """The fields of state.json."""
        return {
            "state": self.state,
            "node": self.node,
            "pid": self.pid,
            "exit_code": self.exit_code,
            "log": self.log,
        }


@dataclass
class Node:
    """An agent that has joined."""

    index: int
    link: Link
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    joined: bool = False
    lost: str | None = None
    dismissed: bool = False  # told that the run has ended: its going is no loss
    pending: dict[int, asyncio.Future[Message]] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The node's host name, once it has said it."""
        return str(self.facts.get("host", "?"))


class Fleet:
    """Connections to all agents. Trouble (a lost node, a program's end) goes to ``on_lost`` and ``on_exit``."""

    def __init__(self, plan: Plan, token: bytes) -> None:
        self._plan = plan
        self._token = token
        self._server: asyncio.AbstractServer | None = None
        self._strangers = 0
        self._serial = 0
        self._arrival = asyncio.Event()
        self.nodes: dict[int, Node] = {}
        self.processes: dict[str, ProcessView] = {}
        self.on_join: Callable[[Node], None] = lambda _: None
        self.on_lost: Callable[[Node], None] = lambda _: None
        self.on_exit: Callable[[ProcessView], None] = lambda _: None
        self.on_image: Callable[[Node, str, dict[str, Any]], None] = lambda *_: None
        self.on_signal: Callable[[str, int], None] = lambda *_: None

    async def listen(self, address: str) -> int:
        """Accept agents on ``address``; the port. Raises OSError."""
        self._server = await asyncio.start_server(self._greet, address, 0, limit=control.MAX_MESSAGE)
        return int(self._server.sockets[0].getsockname()[1])

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # None when who connected has gone already.
        peer = "{}:{}".format(*(writer.get_extra_info("peername") or ("?", "?"))[:2])
        link = Link(reader, writer, peer)
        if self._strangers >= control.MAX_STRANGERS:
            await link.close()
            return
        self._strangers += 1
        try:
            index = await control.accept(link, self._token, len(self._plan.nodes))
        except ControlError as error:
            log.warning("refused a connection from %s: %s", peer, error.message)
            await link.close()
            return
        finally:
            self._strangers -= 1
        if index in self.nodes and self.nodes[index].lost is None:
            log.warning("refused a second agent for node %d from %s", index, peer)
            await link.close()
            return
        await self._follow(Node(index, link))

    async def _follow(self, node: Node) -> None:
        self.nodes[node.index] = node
        try:
            await race(self._listen(node), self._beat(node))
        except ControlError as error:
            node.lost = error.message
        except asyncio.CancelledError:
            node.lost = "the lead ended"
            raise
        except (KeyError, TypeError, ValueError) as error:
            log.exception("node %d sent what makes no sense", node.index)
            node.lost = f"it sent what makes no sense ({error!r})"
        finally:
            for future in node.pending.values():
                if not future.done():
                    future.set_exception(ControlError(self._lost(node)))
            await node.link.close()
            self._arrival.set()
            self.on_lost(node)

    def _lost(self, node: Node) -> str:
        return f"node {node.index} ({node.host}) is lost: {node.lost or 'closed'}"

    async def _listen(self, node: Node) -> None:
        while True:
            message = await node.link.receive()
            if "reply" in message:
                future = node.pending.pop(message["reply"], None)
                if future is not None and not future.done():
                    future.set_result(message)
            elif message.get("event") in ("hello", "beat", "exit", "image", "signal"):
                getattr(self, f"_on_{message['event']}")(node, message)

    async def _beat(self, node: Node) -> None:
        while True:
            await node.link.send({"beat": 1})
            await asyncio.sleep(control.BEAT_S)

    def _on_hello(self, node: Node, message: Message) -> None:
        node.facts = message["facts"]
        node.problems = list(message["problems"])
        node.joined = True
        self._arrival.set()
        self.on_join(node)

    def _on_beat(self, node: Node, message: Message) -> None:
        now = time.monotonic()
        for name, signs in message.get("signs", {}).items():
            view = self.processes.get(name)
            if view is not None and tuple(signs) != view.signs:
                view.signs, view.moved = tuple(signs), now

    def _on_exit(self, node: Node, message: Message) -> None:
        view = self.processes[message["name"]]
        if view.pid not in (None, message["pid"]):
            return  # an earlier start of the same name
        view.exit_code = message["code"]
        view.state = "killed" if message["code"] < 0 else "exited"
        view.last = message
        view.ended.set()
        self.on_exit(view)

    def _on_image(self, node: Node, message: Message) -> None:
        self.on_image(node, str(message["what"]), dict(message["with"]))

    def _on_signal(self, node: Node, message: Message) -> None:
        self.on_signal(str(message["name"]), node.index)

    async def gather(self, deadline: float, among: str = "") -> None:
        """Until every agent has joined; ``among``: the hosts of the job. Raises DeadlineError naming who is missing."""
        limit = time.monotonic() + deadline
        while True:
            self._arrival.clear()
            missing = [n.index for n in self._plan.nodes if n.index not in self.nodes or not self.nodes[n.index].joined]
            if not missing:
                return
            try:
                await asyncio.wait_for(self._arrival.wait(), max(0.0, limit - time.monotonic()))
            except asyncio.TimeoutError:
                names = ", ".join(map(str, missing))
                raise DeadlineError(
                    f"no agent of node {names} has joined within {deadline:g} s" + (f" (of {among})" if among else ""),
                    hint="see the job's own log of that task; the nodes must reach each other's high ports",
                ) from None

    async def call(self, index: int, order: str, timeout: float = _CALL_S, **arguments: Any) -> Message:
        """Give an order to an agent and wait for its reply. Raises RunError, ControlError, DeadlineError."""
        node = self.nodes.get(index)
        if node is None or node.lost is not None:
            raise ControlError(self._lost(node) if node else f"node {index} has not joined")
        self._serial += 1
        serial = self._serial
        future = node.pending[serial] = asyncio.get_running_loop().create_future()
        try:
            await node.link.send({"do": order, "id": serial, "with": arguments})
            reply: Message = await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError:
            raise DeadlineError(f"node {index} ({node.host}) did not answer {order!r} within {timeout:g} s") from None
        finally:
            node.pending.pop(serial, None)
        if "error" in reply:
            raise RunError(str(reply["error"]))
        return reply

    async def everywhere(self, order: str, timeout: float = _CALL_S, **arguments: Any) -> dict[int, Message | RunError]:
        """Give an order to all agents that are left; each one's reply or its error."""
        indexes = [index for index, node in self.nodes.items() if node.lost is None]
        calls = [self.call(index, order, timeout, **arguments) for index in indexes]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        found: dict[int, Message | RunError] = {}
        for index, reply in zip(indexes, replies, strict=True):
            if isinstance(reply, BaseException) and not isinstance(reply, RunError):
                raise reply
            found[index] = reply
        return found

    async def start(
        self,
        view: ProcessView,
        argv: list[str],
        env: Mapping[str, str],
        unset: list[str],
        cwd: str | None = None,
        cleanup: list[str] | None = None,
        inspect: list[str] | None = None,
    ) -> None:
        """Have a program started. Raises RunError if it cannot be executed."""
        view.state, view.pid, view.exit_code, view.signs, view.last = "starting", None, None, (), {}
        view.moved = time.monotonic()
        view.ended.clear()
        try:
            reply = await self.call(
                view.node,
                "start",
                name=view.name,
                argv=argv,
                env=dict(env),
                unset=unset,
                cwd=cwd,
                cleanup=cleanup or [],
                inspect=inspect or [],
            )
        except RunError:
            view.state = "exited"
            raise
        view.pid = reply["pid"]

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
        for node in self.nodes.values():
            await node.link.close()
        if self._server is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1.0)
