"""The handshake between two nodes: every state with every message, every reason to refuse, and who wins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.cluster.link.frames import HEADER, FrameReader, encode
from clusterbroker.cluster.link.hello import (
    LINK_INDEX,
    BrokenHandshake,
    Handshake,
    Handshaking,
    Hello,
    Identity,
    Refused,
    Standing,
    Welcome,
    late,
    objection,
    passes,
    refusal,
    rival,
    valid_name,
)

B = Identity("b", "c1", 3, "disk-b", "p-b", "0.1", 2)
A = Identity("a", "c1", 5, "disk-a", "p-a", "0.1", 3)
HELLO = A.hello("data", 7)


def said(hello: Hello, **changes: Any) -> Hello:
    return msgspec.structs.replace(hello, **changes)


def heads(data: bytes) -> list[bytes]:
    frames = list(FrameReader().feed(data))
    assert all(index == LINK_INDEX for index, _, _ in frames)
    return [bytes(head) for _, head, _ in frames]


def test_two_sides_agree() -> None:
    dialler = Handshake("data", lambda channel: A.hello(channel, 7), lambda hello: None)
    acceptor = Handshake(None, lambda channel: B.hello(channel, 0), lambda hello: None)
    assert acceptor.begin() == b""
    (hello,) = heads(dialler.begin())
    answer, welcome = heads(acceptor.received(LINK_INDEX, hello))
    (last,) = heads(dialler.received(LINK_INDEX, answer))
    assert dialler.received(LINK_INDEX, welcome) == b""
    assert acceptor.received(LINK_INDEX, last) == b""
    assert dialler.state is acceptor.state is Handshaking.LINKED
    assert (dialler.hello, acceptor.hello) == (B.hello("data", 0), HELLO)


MESSAGES: dict[str, Any] = {"hello": HELLO, "welcome": Welcome(), "refused": Refused("go\x1b[2Jaway"), "junk": None}
ENDS = {
    ("new", "welcome"): "it said Welcome at the wrong time",
    ("new", "refused"): "it refused the link: go?[2Jaway",
    ("new", "junk"): "it sent what no handshake has",
    ("met", "hello"): "it said Hello at the wrong time",
    ("met", "refused"): "it refused the link: go?[2Jaway",
    ("met", "junk"): "it sent what no handshake has",
}


@pytest.mark.parametrize("state", ["new", "met"])
@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("dialled", ["data", None])
def test_every_state_with_every_message(state: str, message: str, dialled: str | None) -> None:
    side = Handshake(dialled, lambda channel: B.hello(channel, 0), lambda hello: None)
    if state == "met":
        side.received(LINK_INDEX, msgspec.msgpack.encode(HELLO))
    head = msgspec.msgpack.encode(MESSAGES[message]) if MESSAGES[message] is not None else b"\xc1"
    if (line := ENDS.get((state, message))) is not None:
        with pytest.raises(BrokenHandshake) as broken:
            side.received(LINK_INDEX, head)
        assert broken.value.line == line
        assert side.state is Handshaking.ENDED
    else:
        side.received(LINK_INDEX, head)
        assert side.state is (Handshaking.MET if state == "new" else Handshaking.LINKED)


def test_a_frame_before_the_welcome_ends_it() -> None:
    side = Handshake(None, lambda channel: B.hello(channel, 0), lambda hello: None)
    with pytest.raises(BrokenHandshake, match="before it was welcome"):
        side.received(5, msgspec.msgpack.encode(HELLO))


@given(st.binary(max_size=200))
def test_any_bytes_end_it_with_a_line(head: bytes) -> None:
    side = Handshake(None, lambda channel: B.hello(channel, 0), lambda hello: "no")
    with pytest.raises(BrokenHandshake):
        side.received(LINK_INDEX, head)
    assert "\n" not in late(head)


def test_what_comes_late_is_named() -> None:
    (head,) = heads(refusal("x" * 1000))
    assert late(head) == "it refused the link: " + "x" * 500
    assert late(msgspec.msgpack.encode(HELLO)) == "it said Hello again, on a link that stands"


def test_an_older_and_a_newer_hello_can_be_read_by_this_one() -> None:
    fields = [0, 2, "c1", "a", 5, "disk", "p", "data", 1, "0.9", 3, "a field of tomorrow", [1]]
    raw = msgspec.msgpack.encode(fields)
    frame = HEADER.pack(HEADER.size + len(raw), len(raw), LINK_INDEX) + raw
    heard: list[Hello] = []
    side = Handshake(None, lambda channel: B.hello(channel, 0), heard.append)  # type: ignore[arg-type]
    ((index, head, _),) = FrameReader().feed(frame)
    side.received(index, head)
    assert heard[0].protocol == 2


@pytest.mark.parametrize(
    "hello, certified, expected, channel, line",
    [
        (HELLO, "a", None, None, None),
        (HELLO, "a", "a", "data", None),
        (said(HELLO, cluster=""), "a", None, None, None),
        (said(HELLO, protocol=9, software="7"), "a", None, None, "a speaks link protocol 9 (clusterbroker 7), b"),
        (HELLO, "x", None, None, "a shows the certificate of x"),
        (HELLO, None, None, None, "a shows the certificate of None"),
        (said(HELLO, cluster="c2"), "a", None, None, "a is of cluster c2, b of cluster c1: give all founders"),
        (said(HELLO, name="a b"), "a b", None, None, "'a b' is no node name"),
        (said(HELLO, name="b"), "b", None, None, "two nodes call themselves b (disks disk-a and disk-b)"),
        (B.hello("data", 1), "b", None, None, "b dialled itself"),
        (HELLO, "a", "c", "data", "at the address of c answers a"),
        (HELLO, "a", "a", "control", "a wants a link for 'data', b for 'control'"),
        (said(HELLO, level=2), "a", None, None, None),
        (said(HELLO, level=1, software="0.0"), "a", None, None,
         "a runs clusterbroker 0.0, which knows feature level 1, and the cluster is at level 2: install the release of "
         "b (clusterbroker 0.1) or a newer one on it"),
        (said(HELLO, channel="x"), "a", None, None, "a wants a link for 'x', b for 'control or data'"),
    ],
)  # fmt: skip
def test_each_reason_to_refuse_is_one_line(
    hello: Hello, certified: str | None, expected: str | None, channel: str | None, line: str | None
) -> None:
    why = objection(B, hello, certified, expected, channel, 2)
    if line is None:
        assert why is None
    else:
        assert why is not None
        assert "\n" not in why
        assert why.startswith(line)


def test_two_joiners_found_no_cluster() -> None:
    why = objection(replace(B, cluster=""), said(HELLO, cluster=""), "a", None, None, 1)
    assert why is not None
    assert "neither a nor b is a member" in why


def test_of_two_connections_one_wins() -> None:
    def beaten(dialled: bool, was_dialled: bool, own: str = "b", **changes: Any) -> str | None:
        new = said(HELLO, **{"number": 8, **changes})
        return rival(own, Standing(HELLO, was_dialled), new, dialled)

    assert beaten(False, False) is None, "the peer dialled again: it has lost the older"
    assert "connection 7 already" in str(beaten(False, False, number=7))
    assert "connection 7 already" in str(beaten(False, False, number=6))
    assert beaten(True, True) is None
    # both dialled: the lower name's connection, whichever was first, seen from either side
    assert beaten(False, True) is None, "a dialled, and a < b"
    assert "each other" in str(beaten(True, False))
    assert beaten(True, False, own="0") is None, "0 dialled, and 0 < a"
    assert "each other" in str(beaten(False, True, own="0"))
    # another process
    assert beaten(False, False, process="p2", incarnation=6) is None
    copied = str(beaten(False, False, process="p2", incarnation=5))
    assert [passes(f"it refused the link: {why}") for why in (str(beaten(True, False)), copied)] == [True, False]
    assert "do not copy data directories" in str(beaten(False, False, process="p2", incarnation=5))
    assert "two nodes call themselves a" in str(beaten(False, False, process="p2", incarnation=6, disk_id="d2"))


def test_names() -> None:
    assert all(valid_name(name) for name in ("a", "node-1", "A.b_c", "x" * 64))
    assert not any(valid_name(name) for name in ("", "x" * 65, "ä", "a b", "a\n", "a/b"))


def test_refusals_fit_before_a_link_stands() -> None:
    assert len(refusal("x" * 10_000)) < 4096
    assert (
        len(encode(Identity("x" * 64, "c" * 32, 2**63, "d" * 36, "p" * 36, "1.2.3", 2**63).hello("control", 2**63)))
        < 4096
    )
