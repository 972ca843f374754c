"""The control channel among strangers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from recipe_toolkit.errors import ControlError, DeadlineError, RunError
from recipe_toolkit.run import control
from recipe_toolkit.run.fleet import Fleet
from runkit import engine, plan

TOKEN = b"secret"
HELLO = {"event": "hello", "facts": {"host": "n"}, "problems": []}


def with_fleet(work: Callable[[Fleet, int], Awaitable[None]], nodes: int = 2) -> Fleet:
    """Run ``work`` beside a lead that listens."""
    fleet = Fleet(plan([engine("serve-0", 0)], nodes=nodes), TOKEN)

    async def main() -> None:
        port = await fleet.listen("127.0.0.1")
        try:
            await asyncio.wait_for(work(fleet, port), 20.0)
        finally:
            await fleet.close()

    asyncio.run(main())
    return fleet


async def raw(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What the other side said until it closed."""
    return await asyncio.wait_for(reader.read(), 10.0)


async def joins(fleet: Fleet, port: int) -> None:
    """Proof that the lead still works: an agent joins and answers."""
    link = await control.connect("127.0.0.1", port, TOKEN, 0)
    await link.send(HELLO)
    while 0 not in fleet.nodes or not fleet.nodes[0].joined:
        await asyncio.sleep(0.01)

    async def answer() -> None:
        while True:
            message = await link.receive()
            if "do" in message:
                await link.send({"reply": message["id"], "got": message["with"]})
                return

    task = asyncio.ensure_future(answer())
    assert (await fleet.call(0, "tail", name="x"))["got"] == {"name": "x"}
    await task
    await link.close()


def test_an_agent_joins_and_answers() -> None:
    with_fleet(joins)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000, b"[]\n", b'{"node": true}\n', b"{" * 3000 + b"\n"]
)
def test_strangers_are_dropped(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "GREETING_S", 0.3)

    async def work(fleet: Fleet, port: int) -> None:
        reader, writer = await raw(port)
        writer.write(said)
        text = await closed(reader)
        assert set(json.loads(text.splitlines()[0])) == {"protocol", "nonce"}
        writer.close()
        assert fleet.nodes == {}
        await joins(fleet, port)

    with_fleet(work)


def test_a_flood_of_strangers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "GREETING_S", 0.5)
    monkeypatch.setattr(control, "MAX_STRANGERS", 4)

    async def work(fleet: Fleet, port: int) -> None:
        many = [await raw(port) for _ in range(10)]
        texts = await asyncio.gather(*(closed(reader) for reader, _ in many))
        assert sum(text == b"" for text in texts) == 6
        for _, writer in many:
            writer.close()
        await joins(fleet, port)

    with_fleet(work)


def test_another_token() -> None:
    async def work(fleet: Fleet, port: int) -> None:
        with pytest.raises(ControlError, match=r"lost the connection|closed"):
            await control.connect("127.0.0.1", port, b"guess", 0)
        assert fleet.nodes == {}

    with_fleet(work)


def test_the_agent_checks_the_lead() -> None:
    """A false lead that relays the greeting cannot prove that it knows the token."""

    async def main() -> None:
        async def false_lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(json.dumps({"protocol": 1, "nonce": "a" * 32}).encode() + b"\n")
            await reader.readline()
            writer.write(json.dumps({"proof": "b" * 64}).encode() + b"\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(false_lead, "127.0.0.1", 0)
        with pytest.raises(ControlError, match="does not know the run's token"):
            await control.connect("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN, 0)
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("protocol", "node", "text"),
    [(99, 0, "speaks control protocol 99, the lead speaks 1"), (1, 7, "node index 7 is outside the plan's 2 nodes")],
)
def test_refusals_are_said_to_who_knows_the_token(protocol: int, node: int, text: str) -> None:
    async def work(fleet: Fleet, port: int) -> None:
        reader, writer = await raw(port)
        theirs = json.loads(await reader.readline())["nonce"]
        proof = control._proof(TOKEN, "agent", theirs, "c" * 32, str(node))
        hello: dict[str, Any] = {"protocol": protocol, "nonce": "c" * 32, "node": node, "proof": proof}
        writer.write(json.dumps(hello).encode() + b"\n")
        assert text in json.loads(await closed(reader))["error"]
        writer.close()
        assert fleet.nodes == {}

    with_fleet(work)


def test_a_second_agent_of_a_node_is_refused() -> None:
    async def work(fleet: Fleet, port: int) -> None:
        first = await control.connect("127.0.0.1", port, TOKEN, 0)
        second = await control.connect("127.0.0.1", port, TOKEN, 0)
        with pytest.raises(ControlError, match="closed"):
            await second.receive()
        await first.send(HELLO)
        while not fleet.nodes[0].joined:
            await asyncio.sleep(0.01)
        await first.close()
        await second.close()

    with_fleet(work)


def test_a_lost_agent_is_noticed_at_once() -> None:
    lost: list[int] = []

    async def work(fleet: Fleet, port: int) -> None:
        fleet.on_lost = lambda node: lost.append(node.index)
        link = await control.connect("127.0.0.1", port, TOKEN, 1)
        await link.send(HELLO)
        while 1 not in fleet.nodes or not fleet.nodes[1].joined:
            await asyncio.sleep(0.01)
        call = asyncio.ensure_future(fleet.call(1, "tail", name="x"))
        await link.receive()
        raw_socket = link._writer.get_extra_info("socket")
        raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, as a dying host does
        link._writer.transport.abort()
        with pytest.raises(ControlError, match=r"node 1 \(n\) is lost"):
            await call
        with pytest.raises(ControlError, match="is lost"):
            await fleet.call(1, "tail", name="x")

    with_fleet(work)
    assert lost == [1]


def test_a_silent_link_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that vanishes closes no connection."""

    async def work(fleet: Fleet, port: int) -> None:
        link = await control.connect("127.0.0.1", port, TOKEN, 0)
        await link.receive(timeout=5.0)  # the first beat
        with pytest.raises(ControlError, match=r"has said nothing for 0\.2 s"):
            await link.receive(timeout=0.2)
        await link.close()

    monkeypatch.setattr(control, "BEAT_S", 5.0)
    with_fleet(work)


def test_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_MESSAGE", 10_000)

    async def work(fleet: Fleet, port: int) -> None:
        link = await control.connect("127.0.0.1", port, TOKEN, 0)
        with pytest.raises(ControlError, match="longer than 10000"):
            await link.send({"event": "beat", "x": "y" * 20_000})
        link._writer.write(b"z" * 50_000 + b"\n")
        while 0 not in fleet.nodes or fleet.nodes[0].lost is None:
            await asyncio.sleep(0.01)
        assert "longer than" in str(fleet.nodes[0].lost)
        await link.close()

    with_fleet(work)


def test_nonsense_from_a_known_agent_costs_its_node_only(caplog: pytest.LogCaptureFixture) -> None:
    async def work(fleet: Fleet, port: int) -> None:
        link = await control.connect("127.0.0.1", port, TOKEN, 1)
        await link.send({"event": "exit", "name": "nobody"})
        while 1 not in fleet.nodes or fleet.nodes[1].lost is None:
            await asyncio.sleep(0.01)
        assert "makes no sense" in str(fleet.nodes[1].lost)
        await link.close()
        await joins(fleet, port)

    with_fleet(work)


def test_who_is_missing_is_named() -> None:
    async def work(fleet: Fleet, port: int) -> None:
        link = await control.connect("127.0.0.1", port, TOKEN, 1)
        await link.send(HELLO)
        with pytest.raises(DeadlineError, match=r"no agent of node 0, 2 has joined within 0\.3 s"):
            await fleet.gather(0.3)
        await link.close()

    with_fleet(work, nodes=3)


def test_an_error_reply_is_an_error() -> None:
    async def work(fleet: Fleet, port: int) -> None:
        link = await control.connect("127.0.0.1", port, TOKEN, 0)
        await link.send(HELLO)
        while 0 not in fleet.nodes or not fleet.nodes[0].joined:
            await asyncio.sleep(0.01)
        call = asyncio.ensure_future(fleet.call(0, "start", 5.0))
        while "do" not in (message := await link.receive()):
            continue
        await link.send({"reply": message["id"], "error": "no such program"})
        with pytest.raises(RunError, match="no such program"):
            await call
        with pytest.raises(DeadlineError, match=r"node 0 \(n\) did not answer 'tail' within 0\.2 s"):
            await fleet.call(0, "tail", 0.2)
        await link.close()

    with_fleet(work)
