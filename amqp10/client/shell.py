"""The asyncio shell: sockets, clock, chance, and what a program calls.

    async with await connect(["amqp://a:5672", "amqp://b:5672"], container_id="orders-1") as connection:
        sender = await connection.sender("/queues/orders", name="orders-out", recoverable=True)
        outcome = await sender.send(Message(body=b"first"))

After a loss the connection is made anew, to the next address, and its links are attached again. A recoverable link goes
on as if nothing had been; of another one, deliveries without an answer fail with what became of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self

from clusterbroker.amqp10.client.core import Closed, Connection, Event, Opened, Options, Sasl
from clusterbroker.amqp10.client.endpoints import Endpoint, Receiver, Sender
from clusterbroker.amqp10.client.errors import (
    ClientError,
    ClosedHere,
    ConnectFailed,
    ConnectionLost,
    DeliveryLost,
)
from clusterbroker.amqp10.client.links import (
    FIRST,
    LINK_RECOVERY,
    MIXED,
    SECOND,
    SETTLED,
    UNSETTLED,
    Attached,
    Decided,
    Delivered,
    Detached,
    Drained,
    Lost,
    ReceiverLink,
    SenderLink,
    Settled,
    Terms,
)
from clusterbroker.amqp10.client.reconnecting import Address, Backoff, Tour
from clusterbroker.amqp10.client.session import Begun, Ended, Session
from clusterbroker.amqp10.client.store import MemoryStore, Store
from clusterbroker.broker.wire.amqp10.performatives import Coordinator, Open, Source, Target

READ_BYTES: Final = 256 * 1024
DIAL_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 5.0
EXPIRY_S: Final = 24 * 3600
"""How long the peer keeps a recoverable link without its client, unless the program says otherwise."""
Recoverable = bool | Literal["node"]
"""True: over the loss of node and queue's owner, or the link is refused. "node": what the peer keeps in its memory."""


async def connect(
    addresses: str | Sequence[str],
    *,
    container_id: str = "",
    user: str | None = None,
    password: str | None = None,
    sasl: Sasl | Literal["EXTERNAL", "ANONYMOUS"] | None = None,
    tls: ssl.SSLContext | None = None,
    vhost: str | None = None,
    idle_time_out: float = 60.0,
    frame_max: int = 128 * 1024,
    store: Store | None = None,
    reconnect: bool = True,
    backoff: Backoff | None = None,
    timeout: float = 30.0,  # noqa: ASYNC109 - the usual name
    chance: Callable[[], float] = random.random,
    properties: Mapping[str, Any] | None = None,
) -> ClientConnection:
    """A connection to the first address that takes it. Raises ConnectFailed when none did in `timeout` seconds,
    AuthenticationFailed, ClientError.

    `container_id` names this client for ever: recoverable links belong to it. `user` and `password` hold where an
    address has none; without any, guest. `store`: where unsettled deliveries survive this program (`FileStore`).
    `vhost` holds where an address has none.
    """
    urls = [addresses] if isinstance(addresses, str) else list(addresses)
    tour = Tour([Address.parse(url) for url in urls], backoff or Backoff(), chance)
    named = {"EXTERNAL": Sasl.external(), "ANONYMOUS": Sasl.anonymous()}

    def options(address: Address) -> Options:
        chosen = named[sasl] if isinstance(sasl, str) else sasl
        name = address.user or user or "guest"
        word = address.password if address.user else password
        place = address.vhost or vhost
        return Options(
            container_id or f"client-{uuid.uuid4()}",
            chosen or Sasl.plain(name, "guest" if word is None and name == "guest" else word or ""),
            None if place in (None, "/") else f"vhost:{place}",
            frame_max,
            idle_time_out=idle_time_out,
            properties=properties,
        )

    connection = ClientConnection(tour, options, tls, store or MemoryStore(), reconnect)
    await connection.open(timeout)
    return connection


class ClientConnection:
    """A connection that comes back. Made by `connect`."""

    def __init__(
        self,
        tour: Tour,
        options: Callable[[Address], Options],
        tls: ssl.SSLContext | None,
        store: Store,
        reconnect: bool,
    ) -> None:
        self.store = store
        self.container_id = options(tour.addresses[0]).container_id
        self._tour, self._options, self._tls, self._reconnect = tour, options, tls, reconnect
        self._core: Connection | None = None
        self._session: Session | None = None
        self._ends: dict[SenderLink | ReceiverLink, Endpoint] = {}
        self._woken = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._handshake: asyncio.Timeout
        self._over: ClientError | None = None
        """Why the present connection ended."""
        self._late: set[asyncio.TimerHandle] = set()
        self._saving: asyncio.Future[None] | None = None
        """The store's work that is under way, one at a time."""
        self.error: ClientError | None = None
        """Why no other connection comes."""
        self.peer: Open | None = None
        """The peer's open."""
        self.address: Address | None = None
        """Where the connection is, or was."""
        self.reconnects = 0

    @property
    def session(self) -> Session | None:
        return self._session

    def wake(self) -> None:
        self._woken.set()

    @property
    def offered(self) -> tuple[str, ...]:
        """Capabilities that the peer's open offers."""
        return () if self.peer is None else self.peer.offered_capabilities

    @property
    def offers_link_recovery(self) -> bool:
        """Whether links survive their node at this peer."""
        return LINK_RECOVERY in self.offered

    # -- life

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109 - the usual name
        """Returns when the first connection is usable."""
        self._life = asyncio.create_task(self._live(), name=f"amqp10 {self.container_id}")
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            places = ", ".join(map(str, self._tour.addresses))
            last = f" (the last: {self._over})" if self._over else ""
            raise ConnectFailed(f"none of {places} took the connection in {timeout:g} s{last}") from None
        except BaseException:
            await self.close()
            raise

    async def _live(self) -> None:
        while True:
            address, pause = self._tour.next()
            await asyncio.sleep(pause)
            self._over = None
            try:
                await self._one(address)
            except TimeoutError:
                self._over = ConnectFailed(f"{address} did not answer in {DIAL_TIMEOUT_S:g} s")
            except ssl.SSLError as error:
                self._over = ConnectFailed(f"{address}: TLS: {error.reason or error}")
                self._over.may_retry = False
            except OSError as error:
                self._over = ConnectFailed(f"{address}: {error.strerror or error}")
            except ClientError as error:
                self._over = error
            except Exception as error:
                self._fail(ClientError(f"the client itself failed: {error!r}"))
                raise
            if self._closing:
                return
            over = self._over or ConnectionLost("the connection ended")
            if not over.may_retry or (self._ready.done() and not self._reconnect):
                self._fail(over)
                return
            self.reconnects += self._ready.done()

    def _fail(self, error: ClientError) -> None:
        """No other connection comes."""
        self.error = error
        for endpoint in list(self._ends.values()):
            endpoint.fail(error)
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()

    async def _one(self, address: Address) -> None:
        """One connection, from its dialling to its end."""
        tls = (self._tls or ssl.create_default_context()) if address.tls or self._tls is not None else None
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls, limit=READ_BYTES)
        self.address = address
        core = self._core = Connection(self._options(address))
        core.start(self._now())
        self._woken.set()
        tasks = [asyncio.create_task(self._read(core, reader)), asyncio.create_task(self._write(core, writer))]
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S) as handshake:
                self._handshake = handshake
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await self._end(core, writer, tasks)

    async def _end(self, core: Connection, writer: asyncio.StreamWriter, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._take(core.lost("the peer's end of the connection is gone"))
        data = core.take_bytes()
        with contextlib.suppress(OSError):
            if data and self._saves() is None:  # transfers may be among them
                writer.write(data)
        writer.close()
        self._session = self._core = None
        for timer in self._late:
            timer.cancel()
        self._late.clear()
        for endpoint in list(self._ends.values()):
            endpoint.on_lost()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _read(self, core: Connection, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                data = await reader.read(READ_BYTES)
            except OSError as error:
                self._take(core.lost(f"the connection broke: {error.strerror or error}"))
                return
            if not data:
                self._take(core.lost("the peer's end of the connection is gone"))
                return
            self._take(core.receive(data, self._now()))
            for endpoint in self._ends.values():
                endpoint.top_up()
            self._woken.set()
            if core.is_over:
                return

    async def _write(self, core: Connection, writer: asyncio.StreamWriter) -> None:
        """Bytes go out in the order in which they were made, and not before the store has what they depend on."""
        while not core.is_over:
            deadline = core.deadline
            try:
                async with asyncio.timeout(None if deadline is None else max(0.0, deadline - self._now())):
                    await self._woken.wait()
            except TimeoutError:
                self._take(core.tick(self._now()))
            self._woken.clear()
            data = core.take_bytes()
            await self._save()
            if data:
                try:
                    writer.write(data)
                    core.wrote(self._now())
                    await writer.drain()
                except OSError as error:
                    self._take(core.lost(f"the connection broke: {error.strerror or error}"))

    def _saves(self) -> asyncio.Future[None] | None:
        """The store's work that is under way, or was not done; None: it has all that it was given."""
        if self._saving is None and (work := self.store.take()) is not None:
            self._saving = asyncio.ensure_future(asyncio.to_thread(work))
        return self._saving

    async def _save(self) -> None:
        """Makes safe what was given to the store. Cancelled, because the connection is lost, the work goes on: what it
        has is nowhere else, and the next one waits for it. Raises StoreError."""
        while (saving := self._saves()) is not None:
            await asyncio.shield(saving)
            if self._saving is saving:
                self._saving = None

    # -- events

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Opened():
                    self.peer = event.open
                    assert self._core is not None, "an event is of the present connection"
                    self._core.session()
                case Begun():
                    self._begun(event.session)
                case Ended():
                    self._over = event.error or ConnectionLost("the peer ended the session")
                    assert self._core is not None, "an event is of the present connection"
                    self._core.close()
                case Closed():
                    self._over = self._over or event.error
                case _:
                    self._of_link(event)

    def _begun(self, session: Session) -> None:
        self._session = session
        self._handshake.reschedule(None)
        self._tour.succeeded()
        if not self._ready.done():
            self._ready.set_result(None)
        for link in list(self._ends):
            session.attach(link)

    def _of_link(self, event: Attached | Detached | Decided | Delivered | Settled | Lost | Drained) -> None:
        endpoint = self._ends.get(event.link)
        if endpoint is None:
            return
        match event:
            case Attached():
                if not endpoint.on_attached(event.attach) and self._session is not None:
                    self._session.detach(event.link)
            case Detached():
                self._detached(endpoint, event)
            case Decided() if isinstance(endpoint, Sender):
                endpoint.on_decided(event.delivery, event.settled)
            case Delivered() if isinstance(endpoint, Receiver):
                endpoint.on_delivered(event.delivery)
            case Settled() if isinstance(endpoint, Receiver):
                endpoint.on_settled(event.delivery)
            case Lost() if isinstance(endpoint, Receiver):
                text = "the peer does not hold the delivery any more: somebody else may have it"
                endpoint.on_settled(event.delivery, DeliveryLost(text))
            case Drained() if isinstance(endpoint, Receiver):
                endpoint.on_drained()

    def _detached(self, endpoint: Endpoint, event: Detached) -> None:
        """A reason that may pass is waited for, if the link was usable before."""
        error = event.error
        if error is None or not error.may_retry or endpoint.attach is None:
            endpoint.on_detached(error)
            return
        endpoint.on_lost()
        endpoint.refusals += 1
        pause = self._tour.pause(endpoint.refusals)
        self._late.add(asyncio.get_running_loop().call_later(pause, self._attach_again, endpoint))

    def _attach_again(self, endpoint: Endpoint) -> None:
        if self._session is not None and endpoint.error is None:
            self._session.attach(endpoint.link)
            self.wake()

    def dropped(self, endpoint: Endpoint) -> None:
        """The endpoint is over."""
        self._ends.pop(endpoint.link, None)

    # -- what a program asks for

    async def sender(
        self,
        address: str | None,
        *,
        name: str = "",
        recoverable: Recoverable = False,
        second: bool | None = None,
        settle: Literal["auto", "manual"] = "auto",
        mode: Literal["unsettled", "settled", "mixed"] = "mixed",
        expiry_s: int = EXPIRY_S,
        capabilities: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
    ) -> Sender:
        """A link to an address; None: each message says its own in `properties.to`. Raises LinkDetached when the peer
        refuses it, NotRecoverable.

        `second`: outcomes come unsettled, and are settled by this client; recoverable links have it. `settle`
        "manual": `Sender.settle` says when. `source` and `target` stand for address and terms.
        """
        kept = bool(recoverable)
        terms = Terms(
            name or f"sender-{uuid.uuid4()}",
            source or Source(**_durability(recoverable, expiry_s)),
            target or Target(address=address, **_durability(recoverable, expiry_s)),
            kept,
            {"unsettled": UNSETTLED, "settled": SETTLED, "mixed": MIXED}[mode],
            SECOND if (kept if second is None else second) else FIRST,
            properties,
            (*capabilities, LINK_RECOVERY) if recoverable is True else tuple(capabilities),
        )
        sender = Sender(self, SenderLink(terms), recoverable is True, settle == "auto")
        await self._attached(sender)
        return sender

    async def receiver(
        self,
        address: str | None,
        *,
        name: str = "",
        credit: int = 100,
        recoverable: Recoverable = False,
        second: bool | None = None,
        mode: Literal["unsettled", "settled", "mixed"] = "mixed",
        expiry_s: int = EXPIRY_S,
        filter: Mapping[str, Any] | None = None,
        dynamic: bool = False,
        distribution_mode: str | None = None,
        capabilities: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
        source: Source | None = None,
        target: Target | None = None,
    ) -> Receiver:
        """A link from an address. Raises LinkDetached when the peer refuses it, NotRecoverable.

        `second`: `Delivery.accept` returns when the peer has settled; recoverable links have it. `dynamic`: the peer
        makes a node, `Receiver.address` is its name. `filter`: described values by name (`filters`). `source` and
        `target` stand for address and terms.
        """
        kept = bool(recoverable)
        chosen = source or Source(
            address=address,
            dynamic=dynamic,
            filter=None if filter is None else {**filter},
            distribution_mode=distribution_mode,
            **_durability(recoverable, expiry_s),
        )
        terms = Terms(
            name or f"receiver-{uuid.uuid4()}",
            chosen,
            target or Target(**_durability(recoverable, expiry_s)),
            kept,
            {"unsettled": UNSETTLED, "settled": SETTLED, "mixed": MIXED}[mode],
            SECOND if (kept if second is None else second) else FIRST,
            properties,
            (*capabilities, LINK_RECOVERY) if recoverable is True else tuple(capabilities),
        )
        receiver = Receiver(self, ReceiverLink(terms), recoverable is True, credit)
        await self._attached(receiver)
        return receiver

    async def _attached(self, endpoint: Endpoint) -> None:
        if self.error is not None:
            raise self.error
        if self._closing:
            raise ClosedHere("the connection is closed")
        twin = next((known for known in self._ends.values() if known.link_id == endpoint.link_id), None)
        if twin is not None:
            raise ClientError(f"a link with the name '{endpoint.name}' and this role is open: a name is used once")
        self._ends[endpoint.link] = endpoint
        if self._session is not None:
            self._session.attach(endpoint.link)
            self.wake()
        await endpoint.wait_attached()

    async def close(self) -> None:
        """Closes the connection; recoverable links keep their state at the peer. May be called again."""
        self._closing = True
        life, core = self._life, self._core
        if core is not None:
            core.close()
            self.wake()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.wait([life] if life is not None else [])
        if life is not None:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        self._fail(ClosedHere("the connection is closed"))
        try:
            await self._save()
        finally:
            self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _durability(recoverable: Recoverable, expiry_s: int) -> dict[str, Any]:
    """Of a terminus whose unsettled state is to survive (3.5.5, 3.5.6)."""
    if not recoverable:
        return {}
    return {"durable": 2 if recoverable is True else 0, "expiry_policy": "connection-close", "timeout": expiry_s}
