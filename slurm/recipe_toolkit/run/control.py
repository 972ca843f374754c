"""The control channel: one TCP connection from each agent to the lead, a JSON object a line.

Both sides prove that they know the run's token before anything else is said::

    lead  → agent   {"protocol": 1, "nonce": N1}
    agent → lead    {"protocol": 1, "nonce": N2, "node": K, "proof": HMAC(token, "agent" N1 N2 K)}
    lead  → agent   {"proof": HMAC(token, "lead" N2 N1 K)}      or {"error": TEXT}

A stranger gets a nonce and a few seconds, and learns nothing. Later messages are not signed: who can
write into an established connection between two nodes has the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

from recipe_toolkit.errors import ControlError

PROTOCOL = 1
MAX_GREETING = 2048  # bytes of a line before the other side is known
MAX_MESSAGE = 1024 * 1024
GREETING_S = 10.0
BEAT_S = 2.0  # both sides say something at least this often
SILENCE_S = 30.0  # a link that says nothing for so long is lost, though TCP may not know yet
MAX_STRANGERS = 64

Message = dict[str, Any]


class Link:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()
        self.peer = peer
        self.node = -1
        _tune(writer)

    async def send(self, message: Message) -> None:
        """Send one message. Raises ControlError if the link is lost or the message too long."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_MESSAGE:
            raise ControlError(f"a message of {len(line)} bytes for {self.peer} is longer than {MAX_MESSAGE}")
        try:
            async with self._lock:
                self._writer.write(line)
                await asyncio.wait_for(self._writer.drain(), SILENCE_S)
        except asyncio.TimeoutError:
            raise ControlError(f"{self.peer} has taken nothing for {SILENCE_S:g} s") from None
        except OSError as error:
            raise ControlError(f"lost the connection to {self.peer} ({error.strerror or error})") from error

    async def receive(self, timeout: float = SILENCE_S, limit: int = MAX_MESSAGE) -> Message:
        """The next message. Raises ControlError: lost, silent for ``timeout`` seconds, too long, not JSON."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), timeout)
        except asyncio.TimeoutError:
            raise ControlError(f"{self.peer} has said nothing for {timeout:g} s") from None
        except ValueError:
            raise ControlError(f"{self.peer} sent a line longer than {MAX_MESSAGE} bytes") from None
        except OSError as error:
            raise ControlError(f"lost the connection to {self.peer} ({error.strerror or error})") from error
        if not line.endswith(b"\n"):
            raise ControlError(f"lost the connection to {self.peer} (closed)")
        if len(line) > limit:
            raise ControlError(f"{self.peer} sent {len(line)} bytes where at most {limit} are expected")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ControlError(f"{self.peer} sent what is not a JSON object: {line[:80]!r}")
        return message

    async def close(self) -> None:
        """Close; a link that is lost already is no error."""
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)


def _tune(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _proof(token: bytes, *words: str) -> str:
    return hmac.new(token, "\0".join(words).encode(), hashlib.sha256).hexdigest()


def _text(message: Message, key: str) -> str:
    value = message.get(key)
    return value if isinstance(value, str) else ""


async def accept(link: Link, token: bytes, nodes: int) -> int:
    """The lead's side of the greeting: the node index of the agent at the other end.

    Raises ControlError for whoever does not know the token, speaks another protocol or is silent.
    """
    ours = secrets.token_hex(16)
    await link.send({"protocol": PROTOCOL, "nonce": ours})
    answer = await link.receive(GREETING_S, MAX_GREETING)
    node, theirs = answer.get("node"), _text(answer, "nonce")
    if not isinstance(node, int) or isinstance(node, bool) or len(theirs) < 32:
        raise ControlError(f"{link.peer} did not greet as an agent does")
    if not hmac.compare_digest(_proof(token, "agent", ours, theirs, str(node)), _text(answer, "proof")):
        raise ControlError(f"{link.peer} does not know the run's token")
    problem = None
    if answer.get("protocol") != PROTOCOL:
        problem = (
            f"node {node} speaks control protocol {answer.get('protocol')!r}, the lead speaks {PROTOCOL}: "
            "the nodes have different versions of recipe-toolkit"
        )
    elif not 0 <= node < nodes:
        problem = f"node index {node} is outside the plan's {nodes} nodes"
    if problem:
        await link.send({"error": problem})
        raise ControlError(problem)
    await link.send({"proof": _proof(token, "lead", theirs, ours, str(node))})
    link.node, link.peer = node, f"node {node}"
    return node


async def connect(address: str, port: int, token: bytes, node: int) -> Link:
    """The agent's side of the greeting, over a new connection.

    Raises ControlError when refused, OSError when there is nobody.
    """
    reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port, limit=MAX_MESSAGE), GREETING_S)
    link = Link(reader, writer, f"the lead at {address}:{port}")
    try:
        hello = await link.receive(GREETING_S, MAX_GREETING)
        theirs, ours = _text(hello, "nonce"), secrets.token_hex(16)
        if len(theirs) < 32:
            raise ControlError(f"{link.peer} did not greet as a lead does")
        proof = _proof(token, "agent", theirs, ours, str(node))
        await link.send({"protocol": PROTOCOL, "nonce": ours, "node": node, "proof": proof})
        answer = await link.receive(GREETING_S, MAX_GREETING)
        if "error" in answer:
            raise ControlError(f"the lead refused this agent: {_text(answer, 'error')}")
        if not hmac.compare_digest(_proof(token, "lead", ours, theirs, str(node)), _text(answer, "proof")):
            raise ControlError(f"{link.peer} does not know the run's token")
    except BaseException:
        await link.close()
        raise
    link.node = node
    return link
