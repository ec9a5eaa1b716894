"""Bugs at the edges: what a node believes of its own directory. See bugs.py."""

from __future__ import annotations

from typing import Any

from tests.simulation.bugs import mutation, patch


@mutation("a journal that is gone is believed (C1)", only=("lose_journal", "kill", "heal"))
def gone_is_believed() -> None:
    from clusterbroker.broker.server import binding

    def make(remedy: Any) -> Any:
        return lambda part, verdict, *more: (
            binding.Remedy.USE if part == binding.JOURNAL else remedy(part, verdict, *more)
        )

    patch(binding, "remedy", make)


@mutation("a journal of an earlier start is believed (C1)", only=("old_journal", "kill", "heal"))
def old_is_believed() -> None:
    from clusterbroker.broker.server import binding

    def make(judge: Any) -> Any:
        def lax(*arguments: Any) -> Any:
            verdict = judge(*arguments)
            return binding.Verdict.SOUND if verdict is binding.Verdict.OLDER else verdict

        return lax

    patch(binding, "judge", make)


@mutation("a journal is given up that may be the only copy", only=("lose_journal", "kill", "heal"))
def the_last_is_given_up() -> None:
    from clusterbroker.cluster.wiring.membership import Membership

    def make(register: Any) -> Any:
        import msgspec

        def unspared(self: Any, command: Any, log: Any) -> Any:
            if not command.spare_last:
                return register(self, command, log)
            member = register(self, msgspec.structs.replace(command, spare_last=False), log)
            self._put(msgspec.structs.replace(member, alive=False), log)
            return member

        return unspared

    patch(Membership, "register", make)


@mutation("an empty Raft log votes under the id of the one that is gone (C2)", only=("lose_raft", "kill", "heal"))
def empty_raft_votes() -> None:
    from clusterbroker.cluster.raft import identity

    def make(join: Any) -> Any:
        def under_its_old_id(disk: Any, name: Any, disk_id: str, home: str = "", session: int = 0) -> None:
            join(disk, name, home or disk_id, home, session)

        return under_its_old_id

    patch(identity, "join", make)


@mutation("a machine that was paused wakes with its lease (C7)", only=("pause_machine",))
def wakes_with_its_lease() -> None:
    from tests.simulation.pulse import Pulse

    patch(Pulse, "allows", lambda allows: lambda self: True)


@mutation("an owner does not hear that a policy asks for more copies", only=("policy", "kill", "heal"))
def policy_unheard() -> None:
    from clusterbroker.broker.node.member import MemberRole

    patch(MemberRole, "minimum_changed", lambda _: lambda self, entity: None)


@mutation(
    "a member that was failed and registers counts as in sync again", only=("in_between", "kill", "cut_one", "heal")
)
def back_in_sync() -> None:
    import msgspec

    from clusterbroker.cluster.wiring.membership import Membership

    def make(register: Any) -> Any:
        def trusting(self: Any, command: Any, log: Any) -> Any:
            member = register(self, command, log)
            for queue in list(self._index.held_by(member.name)):
                if queue.owner is not None and member.name not in queue.in_sync:
                    in_sync = tuple(sorted({*queue.in_sync, member.name}))
                    eligible = tuple(name for name in queue.eligible if name != member.name)
                    after = msgspec.structs.replace(queue, in_sync=in_sync, eligible=eligible)
                    self._replicas.replace(queue, after, self._replicas.terms(queue), log)
            return member

        return trusting

    patch(Membership, "register", make)


@mutation(
    "a copy that is made anew counts as what it was (its owner does not hear of it)",
    only=("damage", "hand_over_damaged", "kill", "heal"),
)
def copy_lost_unheard() -> None:
    """A copy is lost as such only where its node owned the queue when it found the damage: of what an owner gives up
    the next owner believes nothing anyway, for it begins with that very command."""
    from clusterbroker.replication.primary import Primary

    patch(Primary, "copy_lost", lambda _: lambda self, queue_id, node, now_ms: None)


@mutation("what is damaged here is held back though others have it (C8)", only=("damage", "kill", "heal"))
def damage_is_kept() -> None:
    from clusterbroker.broker.node.damages import Damages

    patch(Damages, "_others", lambda _: lambda self, entity: False)


@mutation("a damaged record is taken for a message that left (C5)", only=("damage", "kill", "heal"))
def damage_is_gone() -> None:
    from clusterbroker.broker.node.damages import Damages

    def found(self: Any, queue_id: int, seqs: Any, what: str, then: Any = lambda: None) -> None:
        queue = self._node.queues.get(queue_id)
        for seq in seqs if queue is not None else ():
            queue.ring.set_aside(seq)
            queue.ring.settle(seq)
        then()

    patch(Damages, "found", lambda _: found)


@mutation(
    "what was given up is given up again by who died before it heard that it was registered (seed 1300300)",
    only=("lose_journal", "kill_all", "kill", "heal"),
)
def given_up_twice() -> None:
    import msgspec

    from clusterbroker.cluster.wiring.membership import Membership

    def make(register: Any) -> Any:
        return lambda self, command, log: register(self, msgspec.structs.replace(command, given_up_as=0), log)

    patch(Membership, "register", make)


@mutation("what a checkpoint forgets stays in the index", only=("kill", "kill_all", "heal"), journal=True)
def forgotten_stays() -> None:
    from clusterbroker.journal.index import Index

    patch(Index, "_forget", lambda _: lambda self, txn, queue_id: None)


@mutation("what the index has lost is not missed (C5)", only=("lose_page", "kill", "heal"), journal=True)
def lost_pages_are_believed() -> None:
    from clusterbroker.journal.index import Index

    patch(Index, "prove", lambda _: lambda self, sums, hurt=None: None)


@mutation("who is forced to own a queue owns it in the epoch of the owner before", only=("force_owner", "heal"))
def forced_without_epoch() -> None:
    import msgspec

    from clusterbroker.cluster.wiring import ownership

    patch(
        ownership,
        "forced",
        lambda forced: lambda queue, to: msgspec.structs.replace(forced(queue, to), epoch=queue.epoch),
    )


FORCED = ("force_behind", "kill", "heal")


@mutation("who is forced without all that was committed does not say so", only=FORCED)
def forced_unflagged() -> None:
    import msgspec

    from clusterbroker.cluster.wiring import ownership

    patch(
        ownership,
        "forced",
        lambda forced: lambda queue, to: msgspec.structs.replace(forced(queue, to), gap_epoch=queue.gap_epoch),
    )


@mutation("copies of before a gap say what is committed", only=FORCED)
def claims_of_before() -> None:
    from clusterbroker.replication import backup

    patch(backup, "claims", lambda _: lambda epochs, gap_epoch: True)


@mutation("a forced owner hands out as if it knew of every hand-over", only=FORCED, in_model=True)
def forced_forgets_handed() -> None:
    from clusterbroker.broker.queues.ring import Ring

    patch(Ring, "take_over", lambda take_over: lambda self, epoch, seen=False: take_over(self, epoch))


@mutation("a forced owner gives seqs anew that clients hold", only=("force_behind", "slow_disk"))
def gap_is_no_gap() -> None:
    from clusterbroker.broker.remote.owned_queue import OwnedQueue

    patch(OwnedQueue, "has_gap", lambda _: property(lambda self: False))


@mutation("a forced owner begins empty: more is gone than its copy lacked", only=FORCED)
def forced_begins_empty() -> None:
    import msgspec

    from clusterbroker.cluster.wiring import ownership

    def make(forced: Any) -> Any:
        def empty(queue: Any, to: Any) -> Any:
            after = forced(queue, to)
            return msgspec.structs.replace(after, begins_empty=after.gap_epoch == after.epoch)

        return empty

    patch(ownership, "forced", make)


@mutation(
    "damage in a file of a stream is said, and its copy kept",
    only=("damage_stream", "kill", "heal"),
    pipeline=("stream",),
    journal=False,
)
def stream_damage_is_kept() -> None:
    from clusterbroker.broker.node.damages import Damages

    def make(found: Any) -> Any:
        return lambda self, queue_id, seqs, what, *then: found(self, queue_id, seqs, what, *then) if seqs else None

    patch(Damages, "found", make)


@mutation(
    "what cannot be read of a file of a stream is taken for nothing",
    only=("damage_stream", "kill", "heal"),
    pipeline=("stream",),
    journal=False,
)
def stream_damage_is_nothing() -> None:
    from clusterbroker.journal.record import DamagedRecord
    from clusterbroker.journal.stream_catalogue import NOTHING
    from clusterbroker.journal.stream_files import StreamFiles

    def make(take: Any) -> Any:
        def lax(self: Any, queue_id: int, part: Any, wish: Any) -> Any:
            taken = take(self, queue_id, part, wish)
            return NOTHING if isinstance(taken, DamagedRecord) else taken

        return lax

    patch(StreamFiles, "take", make)
