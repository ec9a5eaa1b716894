"""Links of a node: two per peer, "control" and "data", so a snapshot in one delays no vote in the other (waits).

    mesh = Mesh(identity, credentials, events)
    await mesh.listen("127.0.0.1", 5673)
    mesh.set_peers({"b": "127.0.0.1:5674"})        the lower name dials, again and again until it stands
    mesh.send("b", "data", frames)                 False: there is no link now

A link stands when both sides have agreed, and gets the next session number of this process. Unanswered frames may or
may not have arrived when it ends: the layers above ask again on the next session. Frames of one session come in the
order of sending, with no gap. Frames between a node and itself do not come here.

Bytes that wait for a slow peer are bounded by the caller, with `backlog` and `writable`; nothing is thrown away here.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, Protocol

from .acceptor import TLS_TIMEOUT_S, Acceptor
from .certificates import Credentials
from .hello import CHANNELS, Hello, Identity, Standing, objection, passes, rival
from .link import Link, lost_line
from .refusals import Refusals

REDIAL_FIRST_S: Final = 0.05
REDIAL_MAX_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 3.0
PROBE_PAUSE_S: Final = 0.05
PROBE_TIMEOUT_S: Final = 0.5
PROBES_MAX: Final = 6

Probed = Literal["refused", "accepted", "silent"]


class MeshEvents(Protocol):
    """Listener of the mesh; all calls on the loop's thread. None of them may wait."""

    def on_linked(self, peer: str, channel: str, session: int) -> None:
        """Frames may be sent."""

    def on_unlinked(self, peer: str, channel: str, session: int, why: str) -> None:
        """Nothing more comes of that session."""

    def on_frame(self, peer: str, channel: str, index: int, head: memoryview, payload: memoryview) -> None:
        """A frame. msgspec's errors, raised from here, end the link."""

    def on_writable(self, peer: str, channel: str) -> None:
        """The peer has taken most of what waited."""

    def on_cluster(self, cluster: str) -> None:
        """This joiner has got the cluster's id from a member: it is to be kept in the data directory."""

    def on_refused(self, who: str, line: str, suppressed: int) -> None:
        """A line for the log, each reason once per peer and minute; `suppressed`: lines left out since the last one."""

    def admits(self, hello: Hello) -> str | None:
        """Whether a node that is no peer may link (a joiner with the secret): None, or why not."""

    def level(self) -> int:
        """The cluster's feature level, as far as this node knows: a release that knows less is refused."""


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """What a node may choose."""

    write_high_bytes: int = 4 << 20
    """`writable` is False while more than this waits for a peer, until it is down to a quarter."""


class Mesh:
    """The links of one node.

    Invariants: (1) at most one link per peer and channel stands; (2) each `on_linked` has exactly one `on_unlinked`
    after it, unless the mesh is closed; (3) no frame comes outside of the two.
    """

    def __init__(
        self, identity: Identity, credentials: Credentials, events: MeshEvents, options: MeshOptions | None = None
    ) -> None:
        self._identity = identity
        self._credentials = credentials
        self._events = events
        self._options = options or MeshOptions()
        self._loop = asyncio.get_running_loop()
        self._acceptor: Acceptor | None = None
        self._links: dict[tuple[str, str], Link] = {}
        self._past: dict[str, tuple[int, int]] = {}  # bytes sent and received by links that are over
        self._unlinked: dict[Link, None] = {}
        """Connections that do not stand yet, in order."""
        self._peers: dict[str, str] = {}
        self._dialling: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._dials = 0
        self._sessions = 0
        self._refusals = Refusals()
        self._trouble: dict[str, str] = {}
        self._objections: dict[str, str] = {}
        self._closed = False
        self._jitter = random.Random()  # noqa: S311 - spreads dials, decides nothing
        self.dial_all = False
        """A joiner dials each address that it is given: members do not know it yet. Set it before `set_peers`."""

    @property
    def identity(self) -> Identity:
        """This node's identity now."""
        return self._identity

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._acceptor is not None, "it listens"
        return self._acceptor.port

    async def listen(self, host: str, port: int) -> None:
        """Accept peers; port 0 is any free one. Raises OSError with the address in its text."""
        assert self._acceptor is None, "it listens once"
        self._acceptor = await Acceptor.open(
            host, port, self._credentials.server, partial(self._new_link, None), self._refused
        )

    async def close(self) -> None:
        """Ends all, without events. What was sent is given a moment to leave."""
        self._closed = True
        if self._acceptor is not None:
            self._acceptor.close()
        tasks = list(self._dialling.values())
        self._dialling.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in [*self._links.values(), *self._unlinked]:
            link.end("this node stops", b"")
        self._links.clear()
        self._unlinked.clear()

    def set_peers(self, peers: Mapping[str, str]) -> None:
        """All members but this one, name -> HOST:PORT; may change at any time. Links of others are dropped."""
        own = self._identity.name
        new = {name: peers[name] for name in sorted(peers) if name != own}
        gone = [name for name in self._peers if name not in new]
        moved = [name for name in new if self._peers.get(name, new[name]) != new[name]]
        self._peers = new
        for name in gone:
            self.drop(name, "it is no member any more")
            self._trouble.pop(name, None)
        for key in list(self._dialling):
            if key[0] in gone or (key[0] in moved and key not in self._links):
                self._dialling.pop(key).cancel()
        for name in new:
            for channel in CHANNELS:
                if (own < name or self.dial_all) and (name, channel) not in self._dialling:
                    self._dialling[name, channel] = self._loop.create_task(self._dial(name, channel))

    def send(self, peer: str, channel: str, frames: bytes | Iterable[bytes]) -> bool:
        """Frames in order, over the link that stands; False: there is none, nothing is sent."""
        link = self._links.get((peer, channel))
        if link is None:
            return False
        link.write(frames)
        return True

    def session(self, peer: str, channel: str) -> int | None:
        """The number of the link that stands; None: there is none."""
        link = self._links.get((peer, channel))
        return link.session if link is not None else None

    def backlog(self, peer: str, channel: str) -> int:
        """Bytes that wait to leave for that peer; 0 without a link."""
        link = self._links.get((peer, channel))
        return link.backlog if link is not None else 0

    def traffic(self, peer: str) -> tuple[int, int]:
        """(bytes sent, bytes received) over all links with the peer since this node began."""
        sent, received = self._past.get(peer, (0, 0))
        for channel in CHANNELS:
            link = self._links.get((peer, channel))
            if link is not None:
                sent, received = sent + link.sent_bytes, received + link.received_bytes
        return sent, received

    def writable(self, peer: str, channel: str) -> bool:
        """There is a link and not too much waits for it."""
        link = self._links.get((peer, channel))
        return link is not None and link.ready

    def hello(self, peer: str) -> Hello | None:
        """The Hello of a linked peer."""
        return next((link.hello for key, link in self._links.items() if key[0] == peer), None)

    def trouble(self, peer: str) -> str | None:
        """Why the last attempt to link with the peer failed; None: none did since the last link stood."""
        return self._trouble.get(peer)

    def objection(self, peer: str) -> str | None:
        """Why the peer, or this node, did not want the last link that both tried: their process lives, and is asked
        in vain. None: a link stood since, or nobody answers."""
        return self._objections.get(peer)

    def drop(self, peer: str, why: str = "dropped") -> None:
        """End its links; what waits is lost. `on_unlinked` comes before this returns. It is dialled again."""
        for channel in CHANNELS:
            if (link := self._links.get((peer, channel))) is not None:
                link.end(why)

    async def probe(self, peer: str) -> Probed:
        """Whether the peer's process is gone: "refused" when its port refuses two connections 50 ms apart.

        So does "accepted" take two: a process that dies closes its connections first and its port a little later.
        """
        address = self._peers.get(peer)
        if address is None:
            return "silent"
        before: Probed | None = None
        for _ in range(PROBES_MAX):
            found = await self._knock(*split_address(address))
            if found in (before, "silent"):
                return found
            before = found
            await asyncio.sleep(PROBE_PAUSE_S)
        return "silent"

    async def _knock(self, host: str, port: int) -> Probed:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                transport, _ = await self._loop.create_connection(asyncio.Protocol, host, port)
        except ConnectionRefusedError:
            return "refused"
        except OSError:  # TimeoutError is one
            return "silent"
        transport.abort()
        return "accepted"

    # dialling

    def _new_link(self, dialled: tuple[str, str, int] | None, where: str) -> Link:
        link = Link(self, where, dialled, self._options.write_high_bytes)
        self._unlinked[link] = None
        return link

    async def _dial(self, peer: str, channel: str) -> None:
        """Dials until cancelled; waits while a link stands, whoever dialled it."""
        pause_s = REDIAL_FIRST_S
        while True:
            if (standing := self._links.get((peer, channel))) is not None:
                since = self._loop.time()
                await standing.closed.wait()
                if self._loop.time() - since > REDIAL_MAX_S:  # one that breaks at once is no success
                    pause_s = REDIAL_FIRST_S
            elif await self._dial_once(peer, channel):
                continue
            await asyncio.sleep(pause_s * self._jitter.uniform(0.5, 1))
            pause_s = min(REDIAL_MAX_S, pause_s * 2)

    async def _dial_once(self, peer: str, channel: str) -> bool:
        """Whether a link stands now."""
        self._dials += 1
        where = self._peers[peer]
        link = self._new_link((peer, channel, self._dials), where)
        try:
            host, port = split_address(where)
            # the limit covers connecting; the one inside covers TLS
            async with asyncio.timeout(CONNECT_TIMEOUT_S + TLS_TIMEOUT_S):
                await self._loop.create_connection(
                    lambda: link, host, port, ssl=self._credentials.client, ssl_handshake_timeout=TLS_TIMEOUT_S
                )
            await link.settled.wait()
        except asyncio.CancelledError:
            link.end("the peer's address changed")
            raise
        except TimeoutError:
            link.end(f"no connection within {CONNECT_TIMEOUT_S:g} s")
        except ConnectionAbortedError:
            self._spurned(link, f"no TLS handshake within {TLS_TIMEOUT_S:g} s", answered=False)
        except (ssl.SSLError, ValueError) as error:
            self._spurned(link, lost_line(error))
        except OSError as error:
            link.end(lost_line(error))
        return link.linked

    def _spurned(self, link: Link, why: str, answered: bool = True) -> None:
        """`answered`: so the peer has said, or shown; else it may stand still."""
        assert link.dialled is not None, "it was dialled"
        link.end(why)
        if answered:
            self._objections[link.dialled[0]] = why
        self._refused(f"{link.dialled[0]} at {link.where}", why)

    # events of links (LinkOwner)

    def greeting(self, link: Link, channel: str) -> Hello:
        """See LinkOwner."""
        return self._identity.hello(channel, link.dialled[2] if link.dialled is not None else 0)

    def wanted(self, link: Link, hello: Hello) -> str | None:
        """See LinkOwner."""
        expected, channel, _ = link.dialled or (None, None, 0)
        level = self._events.level()
        if (why := objection(self._identity, hello, link.certified, expected, channel, level)) is not None:
            return why
        if hello.name not in self._peers and (why := self._events.admits(hello)) is not None:
            return why
        dialled = link.dialled is not None
        for (name, channel), other in self._links.items():
            if name != hello.name or other.hello is None:
                continue
            if channel != hello.channel and other.hello.process == hello.process:
                continue
            standing = Standing(other.hello, other.dialled is not None)
            if (why := rival(self._identity.name, standing, hello, dialled)) is not None:
                return why
        return None

    def stands(self, link: Link) -> str | None:
        """See LinkOwner."""
        hello = link.hello
        assert hello is not None, "a link stands when the other's hello was good"
        # a link, or the map, may have changed since it was asked first
        if (why := self.wanted(link, hello)) is not None:
            return why
        peer, channel = hello.name, hello.channel
        older_process = [
            other
            for (name, _), other in self._links.items()
            if name == peer and other.hello is not None and other.hello.process != hello.process
        ]
        for other in older_process:
            other.end("a newer start of the peer took its place")
        if (other_connection := self._links.get((peer, channel))) is not None:
            other_connection.end("a newer connection took its place")
        self._unlinked.pop(link, None)
        self._sessions += 1
        link.session = self._sessions
        self._links[peer, channel] = link
        self._trouble.pop(peer, None)
        self._objections.pop(peer, None)
        if not self._identity.cluster:
            self._identity = replace(self._identity, cluster=hello.cluster)
            self._events.on_cluster(hello.cluster)
        self._events.on_linked(peer, channel, link.session)
        return None

    def frame(self, link: Link, index: int, head: memoryview, payload: memoryview) -> None:
        """See LinkOwner."""
        hello = link.hello
        assert hello is not None, "frames come on a link that stands"
        self._events.on_frame(hello.name, hello.channel, index, head, payload)

    def drained(self, link: Link) -> None:
        """See LinkOwner."""
        assert link.hello is not None, "a link that stands has a peer"
        self._events.on_writable(link.hello.name, link.hello.channel)

    def ended(self, link: Link, why: str) -> None:
        """See LinkOwner."""
        if self._closed:
            return
        hello = link.hello
        if hello is not None and self._links.get((hello.name, hello.channel)) is link:
            del self._links[hello.name, hello.channel]
            sent, received = self._past.get(hello.name, (0, 0))
            self._past[hello.name] = sent + link.sent_bytes, received + link.received_bytes
            self._events.on_unlinked(hello.name, hello.channel, link.session, why)
            return
        self._unlinked.pop(link, None)
        peer = link.dialled[0] if link.dialled is not None else link.certified
        if peer in self._peers and link.refused and not passes(why):
            self._objections[peer] = why
        elif link.dialled is not None:
            self._objections.pop(link.dialled[0], None)
        if link.dialled is None:
            self._refused(link.certified or link.where.rpartition(":")[0], why)
            return
        self._trouble[link.dialled[0]] = why
        if link.transport is not None:  # else it is down, or `_dial_once` logs it
            self._refused(f"{link.dialled[0]} at {link.where}", why)

    def _refused(self, who: str, line: str) -> None:
        if self._closed:
            return
        suppressed = self._refusals.count(who, line, time.monotonic())
        if suppressed is not None:
            # some of it the other side wrote
            self._events.on_refused(
                who, "".join(char if char.isprintable() else "?" for char in line[:1000]), suppressed
            )


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT, with IPv6 addresses in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"'{text}' is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
