"""A cluster's map and its log for tests: members by short names, one command per call."""

from __future__ import annotations

from typing import Any

from clusterbroker.cluster.errors import WiringError
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import changes as told
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.map import Applied, ClusterMap


class ClusterWorld:
    """Each call is one command; a refusal is raised, and what was told is kept in `told`."""

    def __init__(self, members: str = "abc", witnesses: str = "") -> None:
        self.map = ClusterMap()
        self.last: Applied | None = None
        for name in members + witnesses:
            self.add(name, witness=name in witnesses)
        for name in members + witnesses:
            self.register(name)

    def do(self, command: c.AnyCommand) -> Any:
        before = self.map.digest()
        applied = self.last = self.map.apply(LogIndex(self.map.applied + 1), c.decode(c.encode(command)))
        assert (self.map.digest() != before) is bool(applied.changes), "changes are told exactly when there are some"
        if isinstance(applied.error, WiringError):
            raise applied.error
        return applied.result

    @property
    def told(self) -> list[str]:
        """The last command's changes in words."""
        assert self.last is not None
        return [_words(change) for change in self.last.changes]

    def add(self, name: str, *, witness: bool = False) -> Any:
        return self.do(c.AddMember(name=NodeId(name), address=f"{name}:1", witness=witness))

    def register(
        self,
        name: str,
        disk: str | None = None,
        damaged: tuple[int, ...] = (),
        *,
        all_damaged: bool = False,
        spare_last: bool = False,
        given_up_as: int = 0,
    ) -> Any:
        """The member's process starts: on the disk that it had, unless another one is named."""
        return self.do(
            c.RegisterNode(
                node=NodeId(name),
                disk_id=disk or self.member(name).disk_id or f"disk of {name}",
                incarnation=Incarnation(self.member(name).incarnation + 1),
                address=f"{name}:1",
                amqp=(f"amqp://{name}:5672",),
                damaged=tuple(QueueId(queue_id) for queue_id in damaged),
                all_damaged=all_damaged,
                spare_last=spare_last,
                given_up_as=Incarnation(given_up_as),
            )
        )

    def fail(self, name: str) -> Any:
        return self.do(c.FailNode(node=NodeId(name), incarnation=self.member(name).incarnation))

    def forget(self, name: str, *, accept_loss: bool = False) -> Any:
        return self.do(c.ForgetNode(node=NodeId(name), accept_loss=accept_loss))

    def leave(self, name: str, *, accept_fewer: bool = False) -> Any:
        """It goes, if no queue counts on its copy."""
        return self.do(c.ForgetNode(node=NodeId(name), leaves=True, accept_fewer=accept_fewer))

    def drain(self, name: str, draining: bool = True, leaving: bool = False) -> Any:
        return self.do(c.DrainNode(node=NodeId(name), draining=draining, leaving=leaving))

    def member(self, name: str) -> Any:
        return self.map.member(NodeId(name))

    def declare(self, name: str, at: str = "a", **fields: Any) -> Queue:
        member = self.member(at)
        arguments = {f"x-{key.replace('_', '-')}": value for key, value in fields.pop("x", {}).items()}
        command = c.DeclareQueue(
            vhost="/",
            name=name,
            owner=NodeId(at),
            incarnation=member.incarnation if member else Incarnation(1),
            arguments=arguments,
            **{"durable": True, **fields},
        )
        queue = self.do(command)
        assert isinstance(queue, Queue)
        return queue

    def queue(self, name: str) -> Queue:
        queue = self.map.queue("/", name)
        assert queue is not None
        return queue

    def queue_of(self, queue_id: int) -> Queue:
        queue = self.map.queue_by_id(QueueId(queue_id))
        assert queue is not None
        return queue

    def delete(self, name: str) -> Any:
        return self.do(c.DeleteQueue(vhost="/", name=name, queue_id=self.queue(name).queue_id))

    def sets(self, name: str) -> tuple[str | None, str, str]:
        """(owner, in sync, eligible)."""
        queue = self.queue(name)
        return queue.owner, "".join(queue.in_sync), "".join(queue.eligible)

    def in_sync(self, name: str, in_sync: str, **wrong: Any) -> bool:
        """The owner proposes an in-sync set; `wrong` replaces what it would say. Whether it was taken."""
        queue = self.queue(name)
        lives = {member.name: member.incarnation for member in self.map.members()}
        said: dict[str, Any] = {
            "node": queue.owner,
            "incarnation": queue.incarnation,
            "epoch": queue.epoch,
            "version": queue.version,
            "incarnations": tuple(lives.get(NodeId(node), Incarnation(1)) for node in in_sync),
            **wrong,
        }
        proposal = c.InSyncProposal(
            queue.queue_id,
            said["epoch"],
            said["version"],
            tuple(NodeId(node) for node in in_sync),
            said["incarnations"],
        )
        command = c.ChangeInSync(node=said["node"], incarnation=said["incarnation"], changes=(proposal,))
        result: tuple[QueueId, ...] = self.do(command)
        return bool(result)

    def transfer(self, name: str, to: str, **wrong: Any) -> Any:
        queue = self.queue(name)
        said: dict[str, Any] = {
            "node": queue.owner,
            "incarnation": queue.incarnation,
            "epoch": queue.epoch,
            "version": queue.version,
            **wrong,
        }
        return self.do(c.TransferOwner(queue_id=queue.queue_id, to=NodeId(to), **said))

    def give_up(self, name: str, node: str, heir: str | None = None, **said: Any) -> Any:
        queue = self.queue(name)
        fields: dict[str, Any] = {"incarnation": self.member(node).incarnation, "epoch": queue.epoch, **said}
        to = None if heir is None else NodeId(heir)
        return self.do(c.GiveUpCopy(node=NodeId(node), queue_id=queue.queue_id, heir=to, **fields))

    def force(self, name: str, to: str) -> Any:
        return self.do(c.ForceOwner(queue_id=self.queue(name).queue_id, node=NodeId(to)))

    def move(self, name: str, add: str = "", remove: str = "") -> Any:
        return self.do(
            c.MoveReplica(
                queue_id=self.queue(name).queue_id,
                add=tuple(NodeId(node) for node in add),
                remove=tuple(NodeId(node) for node in remove),
            )
        )

    def policy(self, **definition: Any) -> None:
        self.do(
            c.PutPolicy(
                vhost="/",
                name="p",
                pattern=".*",
                definition={key.replace("_", "-"): value for key, value in definition.items()},
            )
        )

    def restored(self) -> ClusterMap:
        """The map after a snapshot through bytes."""
        taken = self.map.snapshot()
        return ClusterMap.restored(snapshot.decode(taken.index, list(snapshot.encode(taken))))


def _words(change: Any) -> str:
    match change:
        case told.MemberChanged(member=member):
            return f"member {member.name}"
        case told.MemberForgotten(name=name):
            return f"forgotten {name}"
        case told.OwnerChanged(queue=queue, previous=previous):
            return f"owner of {queue.name}: {previous} -> {queue.owner}"
        case told.InSyncChanged(queue=queue):
            return f"in sync {queue.name}: {''.join(queue.in_sync)}"
        case told.ReplicasChanged(queue=queue):
            return f"replicas of {queue.name}: {''.join(queue.replicas)}"
        case told.QueueDeclared(queue=queue) | told.QueueDeleted(queue=queue):
            return f"{type(change).__name__} {queue.name}"
        case _:
            return type(change).__name__
