"""Becoming a member: the newcomer's side, at a command or at a start, and the member's answer (waits).

    join        `clusterbroker join`: dials one member, asks it, and writes what a start needs: identity and members
    join_first  the same inside a start with `joins`, for environments without a command before it (a pod of a set)
    Admission   the member's side: proposes AddMember; the map's answer is the answer

Nothing of the newcomer's directory is touched before the cluster has agreed. An interrupted join may be repeated. The
directory of a former node never joins again: a forgotten member would return with it, and the cluster must not count on
its content.

`join_first` asks the members of the settings in turn. While none can decide (they start as well, or have no majority)
the node waits and names them; a lasting refusal ends it. A founder asks each of the others once: they may have a
cluster that it has left.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import uuid
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterbroker.broker.server.directory import Identity as DirectoryIdentity
from clusterbroker.broker.server.directory import keep, stored
from clusterbroker.broker.server.endings import Unstarted, come
from clusterbroker.broker.server.member.addresses import WILDCARDS, own_address, remember
from clusterbroker.broker.server.member.catching_up import UNWANTED_S
from clusterbroker.broker.server.member.raft_directory import is_empty
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.errors import AlreadyExists
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.link.certificates import node_credentials
from clusterbroker.cluster.link.frames import encode
from clusterbroker.cluster.link.hello import CONTROL, Hello, Identity, objection, valid_name
from clusterbroker.cluster.link.joining import ANSWERED, ASKED, JoinAnswered, JoinAsked
from clusterbroker.cluster.link.link import Link, lost_line
from clusterbroker.cluster.link.mesh import split_address
from clusterbroker.cluster.link.secret import find_secret
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.journal.journal import lock_directory

if TYPE_CHECKING:
    from clusterbroker.broker.server.options import ClusterOptions
    from clusterbroker.broker.server.ports import ClusterPort, ServerPort

ANSWER_S: Final = 30.0
AGAIN_S: Final = 0.2
NEXT_S: Final = 0.3
TELL_S: Final = 5.0
FOUNDER_S: Final = 2.0
"""So long a founder waits for each answer."""
TRIES: Final = 25
NOT_NOW: Final = "not now: "
"""A refusal that begins so is none for ever."""


class Unjoined(Exception):
    """The cluster refused the newcomer; one line says why."""


class Unanswered(Unjoined):
    """No member could decide: a later question, or one elsewhere, may be answered."""


# -- the newcomer -----------------------------------------------------------------------------------------------


def join(
    data_dir: Path, name: str, address: str, to: str, secret_file: Path | None = None, witness: bool = False
) -> list[str]:
    """The members' names, once `data_dir` is a member's. Blocks. Raises Unjoined, ValueError, OSError."""
    if not valid_name(name):
        raise Unjoined(f"'{name}' cannot be a member's name: use letters, digits and _ . -")
    host, _ = split_address(address)
    split_address(to)
    if host in ("", *WILDCARDS):
        raise Unjoined(f"--cluster {address}: others cannot dial that: give the address at which they reach this node")
    data_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
    lock = lock_directory(data_dir)
    try:
        return asyncio.run(newcomer(data_dir, JoinAsked(name, address, witness), to, secret_file))
    finally:
        os.close(lock)


async def newcomer(data_dir: Path, wish: JoinAsked, to: str, secret_file: Path | None, tries: int = TRIES) -> list[str]:
    """`join` of a directory that the caller has locked. Raises as `join`."""
    known = stored(data_dir)
    if (data_dir / "raft").exists():
        raise Unjoined(f"{data_dir} is a member's already: start it, or join with an empty data directory")
    if (data_dir / "wiring").exists():
        raise Unjoined(
            f"{data_dir} has the queues of a node that was alone: start that one with --cluster and let the other "
            "nodes join it, or join with an empty data directory"
        )
    if known is not None and known.name != wish.name:
        raise Unjoined(f"{data_dir} belongs to node '{known.name}': join as --name {known.name}")
    disk_id = known.disk_id if known is not None else uuid.uuid4().hex
    me = Identity(wish.name, "", 0, disk_id, uuid.uuid4().hex, VERSION, LEVEL)
    credentials = node_credentials(find_secret(secret_file), wish.name, data_dir)
    for left in reversed(range(tries)):
        asking = _Asking(me, wish)
        cluster_id, answer = await asking.ask(to, credentials.client)
        if not answer.refused:
            # in this order: a node with an identity and without known members would found a cluster of its own
            remember(data_dir, {**dict(answer.members), wish.name: wish.address})
            keep(data_dir, DirectoryIdentity(wish.name, disk_id, cluster_id))
            return [name for name, _ in answer.members if name != wish.name]
        if not left or not answer.refused.startswith(NOT_NOW):
            break
        await asyncio.sleep(AGAIN_S)
    kind = Unanswered if answer.refused.startswith(NOT_NOW) else Unjoined
    raise kind(f"{to}: {answer.refused}")


async def join_first(cluster: ClusterPort, shell: ServerPort, directory: Path) -> None:
    """Returns when the locked directory belongs to a member; one that is not empty is left as it is. Raises Unstarted,
    BadSecret, WrongIdentity, OSError, or what ended the node meanwhile."""
    options = shell.options.cluster
    if options is None or not options.joins or not is_empty(shell.storage.parts):
        return
    if options.founds:
        await _join_if_founded(cluster, shell, directory, options)
        return
    wish = JoinAsked(cluster.name, own_address(cluster.name, options.listen, options.peers, {}))
    refused_s: float | None = None
    said_s = shell.loop.time()
    for to in cycle(options.joins):
        asking = shell.loop.create_task(newcomer(directory, wish, to, options.secret_file))
        try:
            names = await come(asking, shell.ended)
        except Unanswered as error:
            refused_s, why = None, str(error)
        except Unjoined as error:
            # its former self may not be dead yet for the others, so one refusal is not the last word
            now_s = shell.loop.time()
            refused_s, why = now_s if refused_s is None else refused_s, str(error)
            if now_s - refused_s >= UNWANTED_S:
                raise Unstarted(f"to join was refused: {why}") from None
        else:
            cluster.log_line("joined", f"a member now, with {', '.join(names)}")
            return
        finally:
            asking.cancel()
        cluster.waits = f"for a member that lets it join ({why})"
        if shell.loop.time() - said_s >= TELL_S:
            said_s = shell.loop.time()
            cluster.log_line("waits", cluster.waits)
        await asyncio.sleep(NEXT_S)


async def _join_if_founded(cluster: ClusterPort, shell: ServerPort, directory: Path, options: ClusterOptions) -> None:
    """The empty directory of a founder: a member's when this returns, unless no cluster took it."""
    wish = JoinAsked(cluster.name, own_address(cluster.name, options.listen, options.peers, {}), False)
    for to in options.joins:
        asking = shell.loop.create_task(newcomer(directory, wish, to, options.secret_file, tries=1))
        try:
            names = await come(asyncio.ensure_future(asyncio.wait_for(asking, FOUNDER_S)), shell.ended)
        except (Unjoined, TimeoutError):
            continue
        cluster.log_line("joined", f"a member again, with {', '.join(names)}")
        return


class _Asking:
    """One link to one member (LinkOwner), for one question."""

    def __init__(self, me: Identity, wish: JoinAsked) -> None:
        self._me = me
        self._wish = wish
        self._cluster = ""
        self._done: asyncio.Future[JoinAnswered] = asyncio.get_running_loop().create_future()

    async def ask(self, to: str, context: ssl.SSLContext) -> tuple[str, JoinAnswered]:
        """(cluster id, answer). Raises Unjoined when no member answers there."""
        host, port = split_address(to)
        link = Link(self, to, ("", CONTROL, 1), 1 << 20)
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().create_connection(lambda: link, host, port, ssl=context)
                answer = await self._done
                return self._cluster, answer
        except TimeoutError:
            raise Unanswered(f"{to} did not answer within {ANSWER_S:g} s: ask another member") from None
        except ConnectionRefusedError:
            raise Unanswered(f"no member listens at {to}: give the cluster address of one that runs") from None
        except OSError as error:
            kind = Unjoined if isinstance(error, ssl.SSLError) else Unanswered
            raise kind(f"cannot speak to a member at {to}: {lost_line(error)}") from None
        finally:
            self._done.cancel()
            link.end("the question is answered", b"")

    def greeting(self, link: Link, channel: str) -> Hello:  # noqa: ARG002
        return self._me.hello(channel, 1)

    def wanted(self, link: Link, hello: Hello) -> str | None:
        return objection(self._me, hello, link.certified, None, CONTROL, FIRST)

    def stands(self, link: Link) -> str | None:
        assert link.hello is not None, "the other side said who it is"
        self._cluster = link.hello.cluster
        # behind the Welcome that this call is part of
        asyncio.get_running_loop().call_soon(self._send, link)
        return None

    def _send(self, link: Link) -> None:
        if link.linked:
            link.write(encode(self._wish, 0))

    def frame(self, link: Link, index: int, head: memoryview, payload: memoryview) -> None:  # noqa: ARG002
        try:
            answer = ANSWERED.decode(head)
        except msgspec.MsgspecError:
            return  # members greet each other on such a link, and this is not a member yet
        if not self._done.done():
            self._done.set_result(answer)

    def drained(self, link: Link) -> None:
        """Nothing waits to be sent."""

    def ended(self, link: Link, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(Unjoined(f"{link.where}: {why}"))


# -- the member -------------------------------------------------------------------------------------------------


class Admission:
    """A member's answers to newcomers."""

    def __init__(
        self,
        view: Callable[[], ClusterView],
        order: Callable[[c.AnyCommand], Awaitable[Applied]],
        ready: Callable[[], bool],
        send: Callable[[str, Any], None],
    ) -> None:
        """`ready`: the cluster has a leader, and this node is alive in it. `send(peer, message)`."""
        self._view = view
        self._order = order
        self._ready = ready
        self._send = send
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def asked(self, peer: str, head: memoryview) -> bool:
        """False: the frame is no newcomer's question."""
        try:
            wish = ASKED.decode(head)
        except msgspec.MsgspecError:
            return False
        if peer not in self._tasks:
            self._tasks[peer] = asyncio.get_running_loop().create_task(self._answer(peer, wish))
        return True

    async def _answer(self, peer: str, wish: JoinAsked) -> None:
        try:
            refused = await self._refused(peer, wish)
            members = tuple((str(member.name), member.address) for member in self._view().members())
            self._send(peer, JoinAnswered(refused, () if refused else members))
        finally:
            self._tasks.pop(peer, None)

    async def _refused(self, peer: str, wish: JoinAsked) -> str:
        if wish.name != peer:
            return f"{peer} cannot join as {wish.name}: a node's name is its certificate's CN"
        try:
            split_address(wish.address)
        except ValueError as error:
            return str(error)
        if not self._ready():
            return NOT_NOW + "this node is not in contact with a majority of the members"
        taken = next((m for m in self._view().members() if m.address == wish.address and m.name != wish.name), None)
        if taken is not None:
            return f"member '{taken.name}' is at {wish.address}: give each member an address of its own"
        known = self._view().member(NodeId(wish.name))
        if known is not None and (known.alive or known.incarnation or known.address != wish.address):
            return self._same_name(wish)
        if known is not None:
            return ""  # it asks again: the first answer was lost
        applied = await self._order(c.AddMember(name=NodeId(wish.name), address=wish.address, witness=wish.witness))
        if applied.error is None:
            return ""
        if isinstance(applied.error, AlreadyExists) and self._view().member(NodeId(wish.name)) is not None:
            return await self._refused(peer, wish)  # by itself through another member, or by another machine
        return applied.error.text

    def _same_name(self, wish: JoinAsked) -> str:
        """A name that is taken: its member may come back with another disk once it is dead, if nothing is lost."""
        known = self._view().member(NodeId(wish.name))
        assert known is not None, "there is such a member"
        if known.alive:
            return f"member '{wish.name}' is there already, alive at {known.address}: choose another name"
        if known.witness is not wish.witness:
            what = "a witness" if known.witness else "no witness"
            return f"member '{wish.name}' is {what}: forget it first (clusterbroker leave {wish.name})"
        if known.address != wish.address:
            return (
                f"member '{wish.name}' is known at {known.address}: give that address, or forget it first "
                f"(clusterbroker leave {wish.name})"
            )
        only = [q for q in self._view().replicas_of(known.name) if {*q.in_sync, *q.eligible} == {known.name}]
        if only:
            return (
                f"member '{wish.name}' may have the only copy of {len(only)} queues, the first is '{only[0].name}': "
                f"start it with its old disk, or accept the loss (clusterbroker leave {wish.name} --accept-loss)"
            )
        return ""

    def close(self) -> None:
        """Nobody is answered any more."""
        for task in self._tasks.values():
            task.cancel()
