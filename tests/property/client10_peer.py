"""A peer of AMQP 1.0 in one process with its client: what the standard wants of it (2.6.13), written down anew.

It speaks frames, and remembers both of its links over any number of connections. `chance` decides what the standard
leaves open: how much it keeps of a delivery that came in part, how much of its map it tells, when it answers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    Flow,
    Open,
    Received,
    Rejected,
    Released,
    Transfer,
)
from tests.support.amqp10 import HEADER, Reader, frame

FRAME_MAX = 512
OUTCOMES = (Accepted, Released, Rejected)


@dataclass
class Taken:
    """A delivery of the client's: its bytes so far, and what was decided."""

    data: bytes = b""
    whole: bool = False
    outcome: Composite | None = None


@dataclass
class Memory:
    """What survives connections."""

    stored: list[bytes] = field(default_factory=list)
    """Accepted payloads, in their order."""
    taken: dict[bytes, Taken] = field(default_factory=dict)
    line: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Tag and payload of what the receiver has not been sent."""
    held: dict[bytes, bytes] = field(default_factory=dict)
    keeps: bool = False
    """The peer offers to keep links: what a complete map of the client's lacks comes as a new delivery."""
    calm: bool = False
    """No connection breaks any more."""
    outcomes: dict[bytes, Composite] = field(default_factory=dict)
    """What the receiver has said, carried out."""


class Peer:
    """One connection to it. `feed` bytes; what it says is in `out`."""

    def __init__(self, memory: Memory, chance: random.Random, header_bytes: int) -> None:
        self.memory, self.chance, self.header_bytes = memory, chance, header_bytes
        self.out = bytearray()
        self.reader = Reader()
        self.handles: dict[int, bool] = {}
        self.partial = {False: False, True: False}
        self.ids: dict[int, bytes] = {}
        self.current: tuple[bytes, int, bool] | None = None
        self.settles = self.resumes = False
        self.credit_given = 0
        self.received = 0
        self.count = self.credit = 0
        self.next_id = 0
        self.sent: dict[int, bytes] = {}
        self.resuming: list[tuple[bytes, Composite | None]] = []
        self.first: list[bytes] = []
        """Held, and not in the client's map: sent as new deliveries."""
        self.closed = False
        self.told: dict[int, Taken] = {}

    def say(self, body: Composite, payload: bytes = b"") -> None:
        self.out += frame(0, body, payload)

    def feed(self, data: bytes) -> None:
        for each in self.reader.feed(data):
            if each.channel == -1:
                self.out += HEADER
            else:
                self._take(each.body, each.payload)

    def _take(self, body: Any, payload: bytes) -> None:
        match body:
            case Open():
                self.say(Open(container_id="peer", max_frame_size=FRAME_MAX))
            case Begin():
                self.say(Begin(remote_channel=0, next_outgoing_id=0, incoming_window=5, outgoing_window=100))
            case Attach():
                self._attach(body)
            case Transfer():
                self._transfer(body, payload)
            case Disposition():
                self._disposition(body)
            case Flow():
                if body.handle is not None and self.handles.get(body.handle) is True:
                    self.credit = (body.delivery_count or 0) + (body.link_credit or 0) - self.count
            case Detach():
                assert not body.closed
                assert self.handles.pop(body.handle) is not None
                self.say(Detach(handle=body.handle))
            case Close():
                self.closed = True
                self.say(Close())

    # -- attaching

    def _attach(self, attach: Attach) -> None:
        role, memory = attach.role, self.memory
        self.handles[attach.handle] = role
        if attach.unsettled is None:
            assert not (memory.held if role else memory.taken), "only an attach whose answer was lost forgets nothing"
        elif not role:
            self.received = self.credit_given = 0
        client = {tag: _state(value) for tag, value in (attach.unsettled or {}).items()}
        answer = self._answer_sender(client) if not role else self._answer_receiver(client)
        told = list(answer.items())
        cut = len(told)
        if told and self.chance.random() < 0.2:
            cut = self.chance.randrange(1, len(told) + 1)
        cut = min(cut, 12)
        self.partial[role] = attach.incomplete_unsettled or cut < len(told)
        if role:
            self.first = []
        if not attach.incomplete_unsettled and not role:
            for tag in [tag for tag in memory.taken if tag not in client]:
                del memory.taken[tag]
        self.say(
            Attach(
                name=attach.name, handle=attach.handle, role=not role, rcv_settle_mode=attach.rcv_settle_mode,
                source=attach.source, target=attach.target, initial_delivery_count=0 if role else None,
                unsettled=dict(told[:cut]), incomplete_unsettled=cut < len(told),
                offered_capabilities=("clusterbroker:link-recovery",) if self.memory.keeps else (),
            )
        )  # fmt: skip
        if role:
            self.count = self.credit = 0
            self._plan_receiver(client, dict(told[:cut]), self.partial[role])
        else:
            self.grant()

    def _answer_sender(self, client: dict[bytes, Composite | None]) -> dict[bytes, Composite | None]:
        answer: dict[bytes, Composite | None] = {}
        for tag, state in client.items():
            known = self.memory.taken.get(tag)
            if isinstance(state, OUTCOMES):
                if known is not None:
                    assert known.outcome == state, "the client invents outcomes"
                    answer[tag] = state
            elif known is not None and known.whole:
                answer[tag] = known.outcome
            elif known is not None and known.data and self.chance.random() < 0.7:
                answer[tag] = self._place(len(known.data))
            elif known is not None and self.chance.random() < 0.5:
                answer[tag] = None
                known.data = b""
            else:
                self.memory.taken.pop(tag, None)
        return answer

    def _place(self, length: int) -> Received:
        if length < self.header_bytes:
            return Received(section_number=0, section_offset=length)
        return Received(section_number=1, section_offset=length - self.header_bytes)

    def _answer_receiver(self, client: dict[bytes, Composite | None]) -> dict[bytes, Composite | None]:
        """What the client does not know of is sent as if it never had been: it is in no map."""
        return dict.fromkeys(tag for tag in client if tag in self.memory.held)

    def _plan_receiver(
        self, client: dict[bytes, Composite | None], told: dict[bytes, Composite | None], partial: bool
    ) -> None:
        memory = self.memory
        self.resuming = [(tag, state) for tag, state in client.items() if tag in told]
        for tag, state in self.resuming:
            if isinstance(state, OUTCOMES):
                self._carry_out(tag, state)
        if not partial:
            first = [tag for tag in memory.held if tag not in client]
            if memory.keeps:
                self.first = first
            else:
                memory.line[:0] = [(tag, memory.held.pop(tag)) for tag in first]

    # -- the client sends

    def grant(self) -> None:
        for handle, role in self.handles.items():
            if not role:
                self.credit_given = max(self.credit_given, self.received + self.chance.choice((1, 5, 60)))
                self.say(
                    Flow(
                        next_incoming_id=0, incoming_window=1 << 20, next_outgoing_id=0, outgoing_window=100,
                        handle=handle, delivery_count=self.received, link_credit=self.credit_given - self.received,
                    )
                )  # fmt: skip

    def _transfer(self, transfer: Transfer, payload: bytes) -> None:
        taken = self.memory.taken
        if self.current is None:
            tag = transfer.delivery_tag
            assert tag is not None
            assert transfer.delivery_id is not None
            self.received += 1
            assert self.received <= self.credit_given, "no transfer without credit"
            if transfer.resume:
                assert tag in taken, "what is resumed is in both maps"
                known = taken[tag]
                if not transfer.settled and not known.whole:
                    place = transfer.state
                    if place is None:
                        known.data = b""
                    else:
                        assert place == self._place(len(known.data)), "it goes on where the peer's map says"
            else:
                assert not self.partial[False], "no new delivery before the maps are complete"
                assert tag not in taken, "a tag in use"
                taken[tag] = Taken()
            self.current = tag, transfer.delivery_id, bool(transfer.settled)
        tag, number, settled = self.current
        known = taken[tag]
        if not known.whole:
            known.data += payload
        if transfer.more:
            return
        self.current = None
        if settled:
            assert known.outcome is not None, "settled is what was decided"
            del taken[tag]
        elif not known.whole:
            known.whole = True
            known.outcome = self.chance.choices((Accepted(), Released()), (9, 1))[0]
            if isinstance(known.outcome, Accepted):
                self.memory.stored.append(known.data)
        if not settled:
            self.ids[number] = tag

    def answer(self) -> None:
        """Says some of the outcomes."""
        for number, tag in list(self.ids.items()):
            if self.chance.random() < 0.7:
                del self.ids[number]
                known = self.memory.taken[tag]
                self.sent_outcome(number, known)
        self.grant()

    def sent_outcome(self, number: int, known: Taken) -> None:
        self.say(Disposition(role=True, first=number, settled=False, state=known.outcome))
        self.told[number] = known

    # -- the client receives

    def deliver(self) -> None:
        """Sends what credit allows."""
        handle = next((handle for handle, role in self.handles.items() if role), None)
        if handle is None:
            return
        while self.credit > 0 and (self.resuming or self.first or (self.memory.line and not self.partial[True])):
            self.credit -= 1
            self.count += 1
            number, self.next_id = self.next_id, self.next_id + 1
            if self.resuming:
                tag, state = self.resuming.pop(0)
                if isinstance(state, OUTCOMES):
                    del self.memory.held[tag]
                    said = Transfer(handle, number, tag, 0, settled=True, state=state, resume=True)
                    self.say(said)
                    continue
                self._send(handle, number, tag, self.memory.held[tag], resume=True)
            elif self.first:
                tag = self.first.pop(0)
                self._send(handle, number, tag, self.memory.held[tag], resume=False)
            else:
                tag, payload = self.memory.line.pop(0)
                self.memory.held[tag] = payload
                self._send(handle, number, tag, payload, resume=False)
            self.sent[number] = tag

    def _send(self, handle: int, number: int, tag: bytes, payload: bytes, resume: bool) -> None:
        room = self.chance.choice((300, 40))
        parts = [payload[at : at + room] for at in range(0, len(payload) or 1, room)]
        for place, part in enumerate(parts):
            first = place == 0
            said = Transfer(
                handle, number if first else None, tag if first else None, 0, resume=resume, more=place < len(parts) - 1
            )
            self.say(said, part)

    def _carry_out(self, tag: bytes, outcome: Composite) -> None:
        known = self.memory.outcomes.setdefault(tag, outcome)
        assert known == outcome, "an outcome does not change"

    def _disposition(self, said: Disposition) -> None:
        for number in range(said.first, (said.first if said.last is None else said.last) + 1):
            if said.role:
                tag = self.sent.pop(number)
                assert isinstance(said.state, OUTCOMES)
                self._carry_out(tag, said.state)
                # else it is settled by a later connection; but the rest of a map waits for what is decided of its part
                if self.memory.calm or self.partial[True] or self.chance.random() < 0.8:
                    del self.memory.held[tag]
                    self.say(Disposition(role=False, first=number, settled=True, state=said.state))
            else:
                assert said.settled
                known = self.told.pop(number)
                tag = next(tag for tag, each in self.memory.taken.items() if each is known)
                del self.memory.taken[tag]


def _state(value: Any) -> Composite | None:
    from clusterbroker.broker.wire.amqp10.performatives import composed

    found = composed(value)
    assert found is None or isinstance(found, Composite)
    return found
