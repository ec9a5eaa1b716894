"""A small blocking client of AMQP 1.0 that can also misbehave.

    peer = Peer(url)                                     header, SASL, open
    session = peer.session()                             begin
    sender = session.sender("/queues/q")                 attach, and the first credit
    sender.send(b"body")                                 waits for the outcome, and returns it
    receiver = session.receiver("/queues/q", credit=5)
    delivery = receiver.delivery()                       waits for one; `receiver.accept(delivery)`
    with peer.closes("amqp:decode-error"): ...           the block must end in this close, and then the socket ends
    with session.ends("amqp:session:..."): ...           the same for end
    with link.detaches("amqp:link:..."): ...             the same for detach

What the node says is kept in the order of its arrival; each wait takes the first that it wants and has a deadline.
Links answer session flow control by themselves: windows are large.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from tests.support.amqp10 import HEADER, SASL_HEADER, Frame, Message, Reader, frame, message, read

TIMEOUT_S = 20.0
WINDOW = 1_000_000
_names = itertools.count(1)
_P = TypeVar("_P", bound=Composite)


class Ended(AssertionError):
    """The node ended what a test did not expect to end."""


class Silence(AssertionError):
    """Nothing came that a test waited for."""


class Delivery(NamedTuple):
    transfer: Transfer
    message: Message

    @property
    def id(self) -> int:
        assert self.transfer.delivery_id is not None
        return int(self.transfer.delivery_id)


class Peer:
    """One TCP connection. `stop_before`: "header", "init", "open"."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        vhost: str = "/",
        stop_before: str = "",
        tls: ssl.SSLContext | None = None,
        container: str | None = None,
        **opened: Any,
    ) -> None:
        parts = urlsplit(url)
        self.user = user if user is not None else unquote(parts.username or "guest")
        self.password = password if password is not None else unquote(parts.password or "guest")
        self.socket = socket.create_connection((parts.hostname or "", parts.port or 5672), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.reader = Reader()
        self.inbox: list[Frame] = []
        self.ended = False
        self.channels = 0
        self.container = container or f"conformance-{next(_names)}"
        self.opened: Open
        if stop_before == "header":
            return
        self.raw(SASL_HEADER)
        assert self.wait_header() == SASL_HEADER
        self.mechanisms = self.wait(SaslMechanisms)
        if stop_before == "init":
            return
        self.login()
        if stop_before == "open":
            return
        self.open(vhost, **opened)

    def login(self, mechanism: str = "PLAIN", response: bytes | None = None) -> None:
        """Signs in, and says the protocol header again."""
        assert self.try_login(mechanism, response) == 0
        self.raw(HEADER)
        assert self.wait_header() == HEADER

    def try_login(self, mechanism: str = "PLAIN", response: bytes | None = None) -> int:
        """The outcome's code."""
        if response is None:
            response = f"\0{self.user}\0{self.password}".encode()
        self.raw(frame(0, SaslInit(mechanism=mechanism, initial_response=response), kind=1))
        return int(self.wait(SaslOutcome).code)

    def open(self, vhost: str = "/", **fields: Any) -> Open:
        hostname = None if vhost == "/" else f"vhost:{vhost}"
        self.say(Open(container_id=self.container, hostname=hostname, **fields))
        self.opened = self.wait(Open)
        return self.opened

    # -- bytes

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, performative: Composite | bytes, channel: int = 0, payload: bytes = b"") -> None:
        self.raw(frame(channel, performative, payload))

    def _fill(self, deadline: float) -> None:
        """Reads once; raises Silence at the deadline, and notes the socket's end."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise Silence(f"nothing of the kind came; there are {self.inbox[:8]}")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.ended = True
        self.inbox += self.reader.feed(data)

    def find(self, wanted: Callable[[Frame], bool], timeout_s: float = TIMEOUT_S) -> Frame:
        """Takes the first frame that is wanted; others stay."""
        deadline = time.monotonic() + timeout_s
        while True:
            for place, known in enumerate(self.inbox):
                if wanted(known):
                    return self.inbox.pop(place)
            if self.ended:
                raise Ended(f"the socket is at its end; there are {self.inbox[:8]}")
            self._fill(deadline)

    def wait_header(self) -> bytes:
        found = self.find(lambda known: True)
        assert found.channel == -1, found
        header: bytes = found.body
        return header

    def wait(self, kind: type[_P], channel: int = 0, where: Callable[[_P], bool] = lambda _: True) -> _P:
        """The next of this kind. What ends the channel or the connection meanwhile is an error."""

        def wanted(known: Frame) -> bool:
            if known.channel == channel and isinstance(known.body, kind) and where(known.body):
                return True
            if isinstance(known.body, Close) or (isinstance(known.body, End) and known.channel == channel):
                raise Ended(f"{known.body} while {kind.__name__} was awaited")
            return False

        found: _P = self.find(wanted).body
        return found

    def wait_end(self) -> None:
        """The node closes the socket."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.ended:
            self._fill(deadline)

    def wait_empty_frames(self, count: int) -> None:
        """The node says so often that it lives."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.reader.empty_frames < count:
            self._fill(deadline)

    @contextmanager
    def closes(self, condition: str, text: str = "", *, at_once: bool = False) -> Iterator[None]:
        """The block ends in a close with this condition; the client answers it, and the node closes the socket.
        `at_once`: without an answer, for the stream cannot be read any more."""
        yield
        close = self.find(lambda known: isinstance(known.body, Close)).body
        check(close.error, condition, text)
        if not at_once:
            self.say(Close())
        self.wait_end()

    def close(self) -> None:
        self.say(Close())
        assert self.find(lambda known: isinstance(known.body, Close)).body.error is None
        self.wait_end()
        self.socket.close()

    def abandon(self) -> None:
        """The socket is gone, without a close."""
        self.socket.close()

    def session(self, **fields: Any) -> Session:
        self.channels += 1
        return Session(self, self.channels - 1, **fields)


def check(error: Any, condition: str, text: str = "") -> None:
    assert isinstance(error, Error), f"expected {condition}, there is no error"
    assert error.condition == condition, error
    assert text in (error.description or ""), error


class Session:
    def __init__(self, peer: Peer, channel: int, *, begins: bool = True, **fields: Any) -> None:
        self.peer, self.channel = peer, channel
        self.next_id = fields.pop("next_outgoing_id", 0)
        self.incoming_window = fields.pop("incoming_window", WINDOW)
        self.handles = 0
        self.received = 0
        self.first_id, self.transfers = self.next_id, 0
        """Of the client: id of its first transfer frame, and how many it has sent."""
        if begins:
            self.say(
                Begin(
                    next_outgoing_id=self.next_id,
                    incoming_window=self.incoming_window,
                    outgoing_window=WINDOW,
                    **fields,
                )
            )
            self.begun = self.wait(Begin)

    def say(self, performative: Composite | bytes, payload: bytes = b"") -> None:
        self.peer.say(performative, self.channel, payload)

    def wait(self, kind: type[_P], where: Callable[[_P], bool] = lambda _: True) -> _P:
        return self.peer.wait(kind, self.channel, where)

    @contextmanager
    def ends(self, condition: str, text: str = "") -> Iterator[None]:
        yield
        end = self.peer.find(lambda known: isinstance(known.body, End) and known.channel == self.channel).body
        check(end.error, condition, text)
        self.say(End())

    def end(self) -> None:
        self.say(End())
        assert self.peer.find(lambda known: isinstance(known.body, End)).body.error is None

    def flow(self, handle: int | None = None, **fields: Any) -> Flow:
        return Flow(
            next_incoming_id=fields.pop("next_incoming_id", self.received),
            incoming_window=fields.pop("window", self.incoming_window),
            next_outgoing_id=(self.first_id + self.transfers) % 2**32,
            outgoing_window=WINDOW,
            handle=handle,
            **fields,
        )

    def settle_down(self) -> Flow:
        """A round trip: what the node had to say before is here."""
        self.say(self.flow(echo=True))
        return self.wait(Flow, lambda known: known.handle is None)

    def wait_settled(self, number: int) -> Disposition:
        """The node settles a delivery that it sent."""
        return self.wait(
            Disposition, lambda known: not known.role and known.first <= number <= (known.last or known.first)
        )

    def handle(self) -> int:
        self.handles += 1
        return self.handles - 1

    def sender(self, address: str | None, **fields: Any) -> Sender:
        return Sender(self, address, **fields)

    def receiver(self, address: str | None, *, credit: int = 0, **fields: Any) -> Receiver:
        link = Receiver(self, address, **fields)
        if credit:
            link.grant(credit)
        return link


class Link:
    session: Session
    handle: int
    name: str

    @contextmanager
    def detaches(self, condition: str, text: str = "") -> Iterator[None]:
        """The block ends in a detach with this condition; the client answers it."""
        yield
        self.detached(condition, text)

    def detached(self, condition: str, text: str = "") -> None:
        detach = self.session.wait(Detach, lambda known: known.handle == self.handle)
        assert detach.closed
        check(detach.error, condition, text)
        self.session.say(Detach(handle=self.handle, closed=True))

    def detach(self, closed: bool = True) -> Detach:
        self.session.say(Detach(handle=self.handle, closed=closed))
        return self.session.wait(Detach, lambda known: known.handle == self.handle)


class Sender(Link):
    """A link whose sender is the client."""

    def __init__(
        self, session: Session, address: str | None, *, name: str = "", settle: int = 2, second: bool = False,
        waits: bool = True, **fields: Any,
    ) -> None:  # fmt: skip
        self.session = session
        self.name = name or f"s-{next(_names)}"
        self.handle = session.handle()
        attach = Attach(
            name=self.name, handle=self.handle, role=False, snd_settle_mode=settle, rcv_settle_mode=int(second),
            source=fields.pop("source", Source()), target=fields.pop("target", Target(address=address)),
            initial_delivery_count=fields.pop("initial_delivery_count", 0), **fields,
        )  # fmt: skip
        session.say(attach)
        self.attach = session.wait(Attach, lambda known: known.name == self.name)
        if waits:
            self.granted = session.wait(Flow, lambda known: known.handle == self.handle)

    def transfer(self, payload: bytes, **fields: Any) -> int:
        """One frame; the delivery's id."""
        session = self.session
        number = fields.pop("delivery_id", session.next_id)
        tag = fields.pop("delivery_tag", b"t%d" % number if number is not None else None)
        session.say(Transfer(handle=self.handle, delivery_id=number, delivery_tag=tag, **fields), payload)
        session.transfers += 1
        session.next_id = (session.next_id + 1) % 2**32
        return int(number) if number is not None else -1

    def post(self, body: bytes = b"", *, settled: bool | None = None, tag: bytes | None = None, **parts: Any) -> int:
        """A message; waits for nothing."""
        fields: dict[str, Any] = {"settled": settled}
        if tag is not None:
            fields["delivery_tag"] = tag
        payload = parts.pop("payload", None)
        return self.transfer(message(body, **parts) if payload is None else payload, **fields)

    def send(self, body: bytes = b"", **parts: Any) -> Composite:
        """A message; its outcome."""
        return self.outcome(self.post(body, **parts))

    def outcome(self, number: int) -> Composite:
        state = self.disposition(number).state
        assert isinstance(state, Composite)
        return state

    def disposition(self, number: int) -> Disposition:
        """The one that speaks of this id; it stays, for others of its range."""
        deadline = time.monotonic() + TIMEOUT_S
        peer = self.session.peer
        while True:
            for known in peer.inbox:
                body = known.body
                if isinstance(body, Disposition) and known.channel == self.session.channel and body.role:
                    last = body.first if body.last is None else body.last
                    if (number - body.first) % 2**32 <= (last - body.first) % 2**32:
                        return body
                if isinstance(body, (Close, End)) or (isinstance(body, Detach) and body.handle == self.handle):
                    raise Ended(f"{body} while an outcome was awaited")
            peer._fill(deadline)


class Receiver(Link):
    """A link whose receiver is the client."""

    def __init__(
        self, session: Session, address: str | None, *, name: str = "", settle: int = 2, second: bool = False,
        properties: dict[str, Any] | None = None, waits: bool = True, max_message_size: int | None = None,
        desired: tuple[str, ...] = (), sourceless: bool = False, **source: Any,
    ) -> None:  # fmt: skip
        self.session = session
        self.name = name or f"r-{next(_names)}"
        self.handle = session.handle()
        self.count = 0
        attach = Attach(
            name=self.name, handle=self.handle, role=True, snd_settle_mode=settle, rcv_settle_mode=int(second),
            source=None if sourceless else Source(address=address, **source), target=Target(), properties=properties,
            max_message_size=max_message_size, desired_capabilities=desired,
        )  # fmt: skip
        session.say(attach)
        if waits:
            self.attach = session.wait(Attach, lambda known: known.name == self.name)

    def grant(self, credit: int, **fields: Any) -> None:
        self.session.say(self.session.flow(self.handle, delivery_count=self.count, link_credit=credit, **fields))

    def flow(self) -> Flow:
        """What the node says of the link."""
        return self.session.wait(Flow, lambda known: known.handle == self.handle)

    def frames(self) -> Frame:
        """The next transfer frame."""
        session = self.session

        def wanted(known: Frame) -> bool:
            if known.channel != session.channel:
                return False
            if isinstance(known.body, Detach) and known.body.handle == self.handle:
                raise Ended(f"{known.body} while a delivery was awaited")
            return isinstance(known.body, Transfer) and known.body.handle == self.handle

        found = session.peer.find(wanted)
        session.received += 1
        return found

    def delivery(self) -> Delivery:
        """The next delivery, all frames of it."""
        first = self.frames()
        payload, last = first.payload, first
        while last.body.more:
            last = self.frames()
            payload += last.payload
        self.count = (self.count + 1) % 2**32
        return Delivery(first.body, read(payload))

    def deliveries(self, count: int) -> list[Delivery]:
        return [self.delivery() for _ in range(count)]

    def bodies(self, count: int) -> list[bytes]:
        return [known.message.body for known in self.deliveries(count)]

    def waiting(self) -> int:
        """Transfer frames that are here, after a round trip."""
        self.session.settle_down()
        return sum(
            isinstance(known.body, Transfer) and known.body.handle == self.handle for known in self.session.peer.inbox
        )

    def dispose(
        self, first: int, last: int | None = None, state: Composite | None = None, settled: bool = True
    ) -> None:
        self.session.say(Disposition(role=True, first=first, last=last, settled=settled, state=state))

    def accept(self, *deliveries: Delivery, settled: bool = True) -> None:
        for each in deliveries:
            self.dispose(each.id, state=Accepted(), settled=settled)
