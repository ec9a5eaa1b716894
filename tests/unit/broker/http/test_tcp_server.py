"""The server on real sockets: patience, TLS, and a certificate that is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509

from clusterbroker.broker.http import tcp_server
from clusterbroker.broker.http.middleware.audit import PEER
from clusterbroker.broker.http.tcp_server import TcpServer
from clusterbroker.broker.server.tls import Chain, TlsOptions
from tests.authority import Authority
from tests.unit.broker.server.server_support import until


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Says who asked, and how."""
    if scope["type"] != "http":
        return
    more = scope["path"] != "/at-once"
    while more:
        more = (await receive()).get("more_body", False)
    body = f"{scope['scheme']} {scope['client'][0]}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Ports(NamedTuple):
    """Of a server, and the server."""

    plain: int
    tls: int
    server: TcpServer


Serve = Callable[..., Awaitable[Ports]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts one; it is ended in the end."""
    running: list[tuple[TcpServer, asyncio.Task[None]]] = []

    async def served(tls: Chain | None = None, proxies: tuple[str, ...] | None = (), answers: Any = app) -> Ports:
        plain, inside = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        server = TcpServer(answers, proxies, tls, [inside] if tls is not None else [])
        task = asyncio.create_task(server._serve([plain]))
        running.append((server, task))
        await until(lambda: server.started)
        return Ports(plain.getsockname()[1], inside.getsockname()[1], server)

    yield served
    for server, task in running:
        server.should_exit = True
        await task


async def asked(port: int, octets: bytes, **how: Any) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **how)
    writer.write(octets)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


LONG = 8 << 20


async def long_answers(scope: Any, receive: Any, send: Any) -> None:
    """More than sockets hold."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LONG)]})
        await send({"type": "http.response.body", "body": b"x" * LONG})


GET = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def test_who_sends_half_a_head_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "HEAD_S", 0.2)
    port, _, _ = await serve()
    assert await asked(port, b"") == b"", "nothing at all"
    assert await asked(port, b"GET / HTTP/1.1\r\nhost:") == b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await reader.readuntil(b"http 127.0.0.1")).startswith(b"HTTP/1.1 200")
    for octet in b"GET / HTTP/1.1\r\nhost: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx":
        writer.write(bytes((octet,)))
        await asyncio.sleep(0.01)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b"", "a byte at a time is no head"


async def test_a_body_may_take_longer_than_a_head(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "HEAD_S", 0.1)
    port, _, _ = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PUT / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 3\r\n\r\na")
    await asyncio.sleep(0.3)
    writer.write(b"bc")
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200")


async def test_so_many_connections(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "CONNECTIONS_MAX", 3)
    port, _, server = await serve()
    there = server.server_state.connections
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    await until(lambda: len(there) == 3)
    with contextlib.suppress(ConnectionError):
        assert await asked(port, GET) == b""
    for _, writer in held:
        writer.close()
    await until(lambda: not there)
    assert b"http 127.0.0.1" in await asked(port, GET)


async def test_who_does_not_take_an_answer_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "TAKING_S", 0.2)
    port, _, server = await serve(answers=long_answers)
    there = server.server_state.connections
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    await until(lambda: len(there) == 1)
    await until(lambda: not there)
    writer.close()


async def test_who_takes_an_answer_slowly_gets_all_of_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "TAKING_S", 0.3)
    monkeypatch.setattr(tcp_server, "TAKEN_BYTES", 1)
    port, _, _ = await serve(answers=long_answers)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    writer.write(GET)
    taken = 0
    while chunk := await reader.read(1 << 20):
        taken += len(chunk)
        await asyncio.sleep(0.02)  # a second in all, and more: several looks
    assert taken > LONG
    writer.close()


async def test_answers_that_nobody_takes_are_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "UNREAD_BYTES_MAX", 3 * LONG)
    port, _, server = await serve(answers=long_answers)
    there = server.server_state.connections
    held = []
    for _ in range(12):
        held.append(await asyncio.open_connection("127.0.0.1", port))
        held[-1][1].write(GET)
    await until(lambda: 0 < sum(one._unread_bytes for one in there) <= 3 * LONG and len(there) < 12)
    for _, writer in held:
        writer.close()
    await until(lambda: not there)
    assert (await asked(port, GET)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("end", [b"", b"host: x\r\n\r\n"], ids=["half", "whole"])
async def test_a_head_that_is_too_long(serve: Serve, end: bytes) -> None:
    """Also when all of it comes in one read."""
    port, _, _ = await serve()
    answer = await asked(port, b"GET / HTTP/1.1\r\nx: " + b"a" * tcp_server.HEAD_BYTES_MAX + b"\r\n" + end)
    assert answer.startswith(b"HTTP/1.1 400")
    many = b"".join(b"x-%d: %s\r\n" % (number, b"a" * 100) for number in range(700))
    assert (await asked(port, b"GET / HTTP/1.1\r\n" + many + end)).startswith(b"HTTP/1.1 400")
    short = b"GET / HTTP/1.1\r\nconnection: close\r\nx: " + b"a" * (tcp_server.HEAD_BYTES_MAX - 200) + b"\r\n"
    assert (await asked(port, short + b"host: x\r\n\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("order", [1, -1])
async def test_two_lengths_of_one_body(serve: Serve, order: int) -> None:
    """A proxy may go by the other one, and take for a body what is the next request here."""
    port, _, _ = await serve()
    lengths = [b"content-length: 6\r\n", b"transfer-encoding: chunked\r\n"][::order]
    head = b"POST /at-once HTTP/1.1\r\nhost: x\r\n" + b"".join(lengths) + b"\r\n"
    answer = await asked(port, head + b"0\r\n\r\nG" + GET)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1, "the connection ends"


@pytest.mark.parametrize(
    "octets",
    [
        b"PUT /at-once HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"PUT /at-once HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\naXX",
        GET.replace(b"connection: close", b"a: b") + b"\xff" * 100_000,
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + b"A" * 100_000,
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\r\n" * 50_000,
    ],
)
async def test_what_is_no_http_ends_in_no_trace(serve: Serve, octets: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A body that breaks while its request is answered had the answer fail, and a trace in the log each time."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))
    port, _, server = await serve()
    with contextlib.suppress(ConnectionError):
        await asked(port, octets)
    await until(lambda: not server.server_state.tasks)
    assert not said
    assert not [record for record in caplog.records if record.exc_info]
    assert b"http 127.0.0.1" in await asked(port, GET)


@pytest.mark.parametrize(
    ("proxies", "client"),
    [((), "http 127.0.0.1"), (("127.0.0.1",), "https 192.0.2.7"), (("10.0.0.0/8",), "http 127.0.0.1")],
)
async def test_proxies_that_are_believed(serve: Serve, proxies: tuple[str, ...], client: str) -> None:
    port, _, _ = await serve(proxies=proxies)
    forwarded = b"x-forwarded-for: 203.0.113.9, 192.0.2.7\r\nx-forwarded-proto: https\r\n"
    answer = await asked(port, GET.replace(b"connection:", forwarded + b"connection:"))
    assert answer.decode().endswith(client)


async def test_what_a_client_is_said_to_be_hides_no_socket(serve: Serve) -> None:
    """Without a setting anybody on this machine may say so."""
    seen: list[Any] = []

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append((scope["client"][0], scope["state"][PEER]))
        await app(scope, receive, send)

    port, _, _ = await serve(proxies=None, answers=noted)
    await asked(port, GET.replace(b"connection:", b"x-forwarded-for: 192.0.2.7\r\nconnection:"))
    await asked(port, GET)
    assert seen == [("192.0.2.7", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")]


async def test_tls_and_another_certificate(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.make("node")
    chain = Chain(TlsOptions(authority["node"]))
    plain, port, _ = await serve(chain)
    trusting = ssl.create_default_context(cafile=authority["root"])
    how = {"ssl": trusting, "server_hostname": "localhost"}
    assert (await asked(port, GET, **how)).endswith(b"https 127.0.0.1")
    assert (await asked(plain, GET)).endswith(b"http 127.0.0.1")

    async def open_one() -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **how)
        octets = writer.get_extra_info("ssl_object").getpeercert(True)
        return f"{x509.load_der_x509_certificate(octets).serial_number:x}", reader, writer

    serial, reader, writer = await open_one()
    assert serial == first
    second = authority.make("node")
    assert chain.reload()
    assert (await open_one())[0] == second
    writer.write(GET)
    assert b"https 127.0.0.1" in await asyncio.wait_for(reader.read(), 5), "the connection that stood goes on"


async def test_a_handshake_that_does_not_come_is_not_waited_for(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_server, "HANDSHAKE_S", 0.2)
    authority = Authority(tmp_path)
    _, port, _ = await serve(Chain(TlsOptions(authority["node"])))
    assert await asked(port, b"") == b""
    assert b"HTTP" not in await asked(port, GET)


async def test_a_client_without_the_certificate_that_is_required(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = TlsOptions(authority["node"], authorities=authority["root"], client_certificate="required")
    _, port, _ = await serve(Chain(options))
    context = ssl.create_default_context(cafile=authority["root"])
    how = {"ssl": context, "server_hostname": "localhost"}
    with contextlib.suppress(ssl.SSLError, ConnectionError):  # in TLS 1.3 a client hears of it when it reads
        assert await asked(port, GET, **how) == b""
    context.load_cert_chain(authority["client"])
    assert (await asked(port, GET, **how)).endswith(b"https 127.0.0.1")
