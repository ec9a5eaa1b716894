"""A bridge that stands: dials both ends, moves, and dials again when one is lost (waits).

Into a broker of ours it is counted: its ledger is the queue `Bridge.own_queue` in the destination's vhost. To another
broker it is plain. A message that has been through this bridge before goes round in circles: its header x-bridge-hops
names the bridges that it has been through, and the bridge stops until its parameter is put anew.

    starting   dials
    running    moves
    blocked    moves nothing: the destination takes nothing at the moment (connection.blocked)
    waiting    an end was lost, or an error of this program ended it: dials again after a delay
    ended      src-delete-after is reached
    refused    trying again would be no use
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from traceback import walk_tb
from typing import Final

from clusterbroker.broker.bridges.carrier import Carrier, locked
from clusterbroker.broker.bridges.channel import CONTENT_BYTES_MAX, Channel, Lost, Refused, is_ours
from clusterbroker.broker.bridges.ledger import BadLedger
from clusterbroker.broker.bridges.mover import Mover, Plan
from clusterbroker.broker.bridges.places import Place
from clusterbroker.broker.bridges.queue_ledger import QueueLedger
from clusterbroker.broker.bridges.rewriting import Rewriter
from clusterbroker.broker.bridges.shovel import Bridge
from clusterbroker.broker.wire.amqp091 import methods as m

STATES: Final = ("starting", "running", "blocked", "waiting", "ended", "refused")
GATHER_S: Final = 0.025
"""A message is later by so much, and its record cheaper."""
DELAY_S_MAX: Final = 60.0
"""Between two tries, whatever the parameter's delay: it is doubled until then."""


@dataclass(slots=True)
class Status:
    """Of a bridge at the node that runs it."""

    state: str = "starting"
    """One of STATES."""
    why: str = ""
    counted: bool = False
    """exactly once into the destination"""
    moved: int = 0
    again: int = 0
    doubtful: int = 0
    lost: int = 0
    """how often an end was lost, or an error ended it"""
    held: int = 0
    """messages that came from the source and are not confirmed by the destination"""
    lag_s: float = 0.0
    """since the destination confirmed something, while messages are held"""


class Standing:
    """`run` until it is cancelled, ends or is refused."""

    def __init__(
        self,
        bridge: Bridge,
        here: Callable[[Place], Place],
        tell: Callable[[str, Status], object] = lambda *_: None,
        content_max: int = CONTENT_BYTES_MAX,
    ) -> None:
        """`here`: a place without a host becomes one. `tell`: hears when the state changes. `content_max`: bytes of a
        message's body that are taken at most."""
        self.bridge = bridge
        self.status = Status()
        self._here, self._tell, self._content_max = here, tell, content_max
        self._confirmed_s = 0.0
        ends = " ".join(map(str, (*bridge.sources, *bridge.destinations)))
        self._hop = _digest(bridge.vhost, bridge.name, ends)
        self._ledger_name = "bridge/" + _digest(
            self._hop, bridge.queue, *(bridge.bound_to or ()), bridge.exchange, repr(bridge.key)
        )

    async def run(self) -> None:
        """Raises nothing but CancelledError."""
        bridge, status = self.bridge, self.status
        delay_s = bridge.delay_s
        for turn in count():
            before = status.moved
            try:
                await self._once(turn)
                self._is("ended", "")
                return
            except (Refused, BadLedger) as error:
                self._is("refused", str(error))
                return
            except (Lost, OSError) as lost:
                status.lost += 1
                delay_s = bridge.delay_s if status.moved > before else min(2 * delay_s, DELAY_S_MAX)
                self._is("waiting", str(lost))
            except Exception as error:
                status.lost += 1
                delay_s = DELAY_S_MAX
                # not its text, in which a password may be
                self._is("waiting", f"an error that nobody foresaw ended it, report it: {_named(error)}")
            status.held = 0
            await asyncio.sleep(delay_s)

    def _is(self, state: str, why: str) -> None:
        told = (state, why) != (self.status.state, self.status.why)
        self.status.state, self.status.why = state, why
        if told:
            self._tell(state, self.status)

    async def _once(self, turn: int) -> None:
        bridge, status = self.bridge, self.status
        origin = self._here(bridge.sources[turn % len(bridge.sources)])
        target = self._here(bridge.destinations[turn % len(bridge.destinations)])
        source = destination = None
        ledger: QueueLedger | None = None
        try:
            destination = await Channel.open(target, "clusterbroker bridge")
            status.counted = is_ours(destination)
            if not bridge.exchange:
                assert bridge.key is not None, "a queue has a name"
                destination, _ = await _declared(destination, bridge.key, dict(bridge.target_arguments))
            if status.counted:
                ledger_queue = bridge.own_queue
                destination, made = await _declared(destination, ledger_queue, {})
                ledger = await QueueLedger.open(target, ledger_queue, self._ledger_name, new=made)
                ledger.channel.on_blocked = partial(self._blocked, ledger.channel)
            source = await Channel.open(origin, "clusterbroker bridge", destination.frame_max)
            source, _ = await _declared(source, bridge.queue, dict(bridge.queue_arguments))
            if bridge.bound_to is not None:
                exchange, key = bridge.bound_to
                bind = m.QueueBind(queue=bridge.queue, exchange=exchange, routing_key=key)
                await source.call(bind, m.QueueBindOk)
            await locked(source, f"bridge.{self._hop}")
            carrier = Carrier(
                source,
                bridge.queue,
                destination,
                Rewriter(
                    bridge.exchange,
                    bridge.key,
                    ledger.state.producer if ledger is not None else b"",
                    self._hop.encode(),
                    destination.frame_max,
                    source.frame_max,
                    self._content_max,
                ),
                Plan(window=bridge.prefetch, follow=not bridge.until_empty, most=bridge.most),
                (ledger, ledger.state) if ledger is not None else None,
                self._progress(),
                GATHER_S,
            )
            destination.on_blocked = partial(self._blocked, destination)
            self._blocked(destination)
            await carrier.run()
        finally:
            for channel in (source, destination):
                if channel is not None:
                    await channel.close()
            if ledger is not None:
                await ledger.close()

    def _blocked(self, destination: Channel) -> None:
        """Says that the destination takes nothing, or that it does again."""
        why = destination.blocked
        text = f"{destination.where} takes nothing at the moment, and messages wait at the source: {why[:200]}"
        self._is("blocked" if why else "running", text if why else "")

    @property
    def lag_s(self) -> float:
        """See Status."""
        return max(0.0, asyncio.get_running_loop().time() - self._confirmed_s) if self.status.held else 0.0

    def _progress(self) -> Callable[[Mover], None]:
        status = self.status
        moved, again, doubtful = status.moved, status.again, status.doubtful

        loop = asyncio.get_running_loop()

        def tell(mover: Mover) -> None:
            if moved + mover.moved > status.moved or not status.held:
                self._confirmed_s = loop.time()
            status.held = mover.held
            status.moved = moved + mover.moved
            status.again, status.doubtful = again + mover.again, doubtful + mover.doubtful

        return tell


async def _declared(channel: Channel, queue: str, arguments: dict[str, object]) -> tuple[Channel, bool]:
    """The channel, or a new one in its place; the queue is there, and whether it was made. Raises Lost."""
    made = False
    try:
        await channel.call(m.QueueDeclare(queue=queue, passive=True), m.QueueDeclareOk)
    except Lost as lost:
        if lost.code != 404:
            raise
        channel = await Channel.open(channel.where, "clusterbroker bridge", channel.frame_max)
        declare = m.QueueDeclare(queue=queue, durable=True, arguments=arguments)  # type: ignore[arg-type]
        await channel.call(declare, m.QueueDeclareOk)
        made = True
    return channel, made


def _digest(*words: str) -> str:
    return blake2b("\0".join(words).encode(), digest_size=6).hexdigest()


def _named(error: BaseException) -> str:
    """Its kind, and the line that raised it."""
    *_, last = [frame for frame, _ in walk_tb(error.__traceback__)]
    return f"{type(error).__name__} at {Path(last.f_code.co_filename).name}:{last.f_lineno}"
