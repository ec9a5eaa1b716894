"""Keys from files and addresses, fetched anew when they must be and no oftener."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.oauth2.tokens import (
    AGAIN_S,
    KEY_SET_BYTES_MAX,
    KEYS_S,
    OLD_KEYS_S,
    REMEMBERED_S,
    Tokens,
    check_url,
)
from clusterbroker.broker.oauth2.verifier import BadToken, Token, verified
from tests.unit.broker.oauth2 import authority as a


class Clock:
    def __init__(self) -> None:
        import time

        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


class Said:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, level: str, event: str, **facts: Any) -> None:
        self.lines.append((event, str(facts.get("why", ""))))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said() -> Said:
    return Said()


class Published:
    """What the authority's server answers."""

    def __init__(self) -> None:
        self.body = a.key_set()
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked = 0
        self.url = ""
        self.drips = threading.Event()
        """Until then an answer comes byte by byte, and does not end."""
        self.drips.set()


@pytest.fixture
def published() -> Iterator[Published]:
    state = Published()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked += 1
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.end_headers()
            while not state.drips.wait(0.1):
                self.wfile.write(b" ")
                self.wfile.flush()
            self.wfile.write(state.body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    state.url = f"http://127.0.0.1:{server.server_port}/keys"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    state.drips.set()
    server.shutdown()
    thread.join()
    server.server_close()


async def refused(tokens: Tokens, token: bytes) -> str:
    with pytest.raises(BadToken) as caught:
        await tokens.token(token)
    return str(caught.value)


async def test_keys_from_a_file(tmp_path: Path, clock: Clock, said: Said) -> None:
    file = tmp_path / "keys.json"
    tokens = Tokens(a.options(keys_file=file), clock, said)
    await refused(tokens, a.token())
    assert [event for event, _ in said.lines] == ["oauth2.no_keys"]
    file.write_bytes(a.key_set())
    clock.now_s += AGAIN_S
    assert (await tokens.token(a.token())).name == "alice"
    assert said.lines[-1][0] == "oauth2.keys"


async def test_a_new_key_is_found_and_made_up_ones_make_nobody_fetch(
    published: Published, clock: Clock, said: Said
) -> None:
    published.body = a.key_set(a.jwk(a.EC, "ec"))
    tokens = Tokens(a.options(keys_url=published.url), clock, said)
    await tokens.token(a.token(a.EC, "ES256", "ec"))
    assert published.asked == 1
    published.body = a.key_set()
    await refused(tokens, a.token())
    assert published.asked == 1, "not so soon after the last time"
    clock.now_s += AGAIN_S
    await tokens.token(a.token())
    assert published.asked == 2
    for number in range(20):
        await refused(tokens, a.token(key_id=f"made-up-{number}"))
    assert published.asked == 2


async def test_an_authority_that_never_ends_its_answer_keeps_nobody_out(
    published: Published, clock: Clock, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(a.options(keys_url=published.url), clock, said)
    assert (await tokens.token(a.token(exp=int(clock.now_s + 10_000)))).name == "alice"
    monkeypatch.setattr("clusterbroker.broker.oauth2.tokens.FETCH_S", 0.3)
    published.drips.clear()
    for _ in range(3):
        clock.now_s += KEYS_S
        async with asyncio.timeout(60):
            assert (await tokens.token(a.token(exp=int(clock.now_s + 10_000)))).name == "alice"
    assert published.asked == 2, "one fetch at a time"
    assert [event for event, _ in said.lines] == ["oauth2.no_keys"]
    published.drips.set()
    while said.lines[-1][0] != "oauth2.keys":
        clock.now_s += KEYS_S
        await tokens.token(a.token(exp=int(clock.now_s + 10_000)))


async def test_a_key_that_is_taken_back_is_out_of_use(published: Published, clock: Clock, said: Said) -> None:
    tokens = Tokens(a.options(keys_url=published.url), clock, said)
    token = a.token(exp=int(clock.now_s + 10_000))
    await tokens.token(token)
    published.body = a.key_set(a.jwk(a.EC, "ec"))
    clock.now_s += KEYS_S + REMEMBERED_S
    await refused(tokens, token)


async def test_while_the_authority_is_gone_old_keys_do_for_a_day(
    published: Published, clock: Clock, said: Said
) -> None:
    tokens = Tokens(a.options(keys_url=published.url), clock, said)
    token = a.token(exp=int(clock.now_s + 10 * OLD_KEYS_S))
    await tokens.token(token)
    published.status = 500
    clock.now_s += KEYS_S + 1
    await tokens.token(token)
    clock.now_s += AGAIN_S + REMEMBERED_S
    await tokens.token(token)
    assert [event for event, _ in said.lines] == ["oauth2.no_keys"], "once"
    clock.now_s += OLD_KEYS_S
    await refused(tokens, token)


async def test_a_token_is_verified_once_a_minute_and_again_when_its_time_is_over(
    published: Published, clock: Clock, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = 0

    def counted(*arguments: Any) -> Token:
        nonlocal times
        times += 1
        return verified(*arguments)

    monkeypatch.setattr("clusterbroker.broker.oauth2.tokens.verified", counted)
    tokens = Tokens(a.options(keys_url=published.url), clock, said)
    long, short = a.token(exp=int(clock.now_s) + 3600), a.token(exp=int(clock.now_s) + 30)
    for _ in range(5):
        await tokens.token(long)
        await tokens.token(short)
    assert times == 2
    clock.now_s += 31
    await tokens.token(long)
    assert times == 2
    await tokens.token(short)  # the verifier asks the real clock
    assert times == 3, "what is over is not taken from memory"
    clock.now_s += REMEMBERED_S - 31
    await tokens.token(long)
    assert times == 4


def _redirect(published: Published) -> None:
    published.status, published.headers = 302, {"location": published.url + "/elsewhere"}


def _huge(published: Published) -> None:
    published.body = b" " * (KEY_SET_BYTES_MAX + 1)


def _nonsense(published: Published) -> None:
    published.body = b"<html>"


@pytest.mark.parametrize("spoil", [_redirect, _huge, _nonsense])
async def test_answers_that_are_no_keys(
    published: Published, clock: Clock, said: Said, spoil: Callable[[Published], None]
) -> None:
    spoil(published)
    tokens = Tokens(a.options(keys_url=published.url), clock, said)
    await refused(tokens, a.token())
    assert published.asked == 1, "a redirection is not followed"
    assert said.lines[0][0] == "oauth2.no_keys"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://keys.example/",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "https://",
        "//x",
        "http://127.0.0.1.nip.io/",
    ],
)
def test_addresses_of_no_keys(url: str) -> None:
    with pytest.raises(ValueError, match="no address of keys"):
        check_url(url)


@pytest.mark.parametrize(
    "url", ["https://keys.example/x", "http://127.0.0.1:8080/", "http://localhost/", "http://[::1]/"]
)
def test_addresses_of_keys(url: str) -> None:
    check_url(url)
