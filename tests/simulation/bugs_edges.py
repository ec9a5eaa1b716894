"""Bugs at the edges: what a node believes of its own directory. See bugs.py."""

from __future__ import annotations

from typing import Any

from tests.simulation.bugs import mutation, patch


@mutation("a journal that is gone is believed (C1)", only=("lose_journal", "kill", "heal"))
def gone_is_believed() -> None:
    from broker.server import binding

    def make(remedy: Any) -> Any:
        return lambda part, verdict, *more: (
            binding.Remedy.USE if part == binding.JOURNAL else remedy(part, verdict, *more)
        )

    patch(binding, "remedy", make)


@mutation("a journal of an earlier start is believed (C1)", only=("old_journal", "kill", "heal"))
def old_is_believed() -> None:
    from broker.server import binding

    def make(judge: Any) -> Any:
        def lax(*arguments: Any) -> Any:
            verdict = judge(*arguments)
            return binding.Verdict.SOUND if verdict is binding.Verdict.OLDER else verdict

        return lax

    patch(binding, "judge", make)


@mutation("a journal is given up that may be the only copy", only=("lose_journal", "kill", "heal"))
def the_last_is_given_up() -> None:
    from cluster.membership import Membership

    def make(register: Any) -> Any:
        import msgspec

        def unspared(self: Any, command: Any, log: Any) -> Any:
            if not command.spare_last:
                return register(self, command, log)
            member = register(self, msgspec.structs.replace(command, spare_last=False), log)
            self._put(msgspec.structs.replace(member, alive=False), log)
            return member

        return unspared

    patch(Membership, "_register_node", make)


@mutation("an empty Raft log votes under the id of the one that is gone (C2)", only=("lose_raft", "kill", "heal"))
def empty_raft_votes() -> None:
    from cluster.raft import identity

    def make(join: Any) -> Any:
        def under_its_old_id(disk: Any, name: Any, disk_id: str, home: str = "", session: int = 0) -> None:
            join(disk, name, home or disk_id, home, session)

        return under_its_old_id

    patch(identity, "join", make)


@mutation("a machine that was paused wakes with its lease (C7)", only=("pause_machine",))
def wakes_with_its_lease() -> None:
    from tests.simulation.pulse import Pulse

    patch(Pulse, "allows", lambda allows: lambda self: True)
