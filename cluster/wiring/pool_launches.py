"""Launches of worker pools: workers that were ordered, until they are reported gone, with the commands about them.

    spare --AssignWorkers--> ordered --RetireWorkers--> retired --RevokeWorkers--> revoked --WorkersGone--> ended

A spare is a launch without a key (NO_KEY): it may read no queue. It gets one, for good, by a command; each command that
ends workers ends spares too. A launch stays until it is reported gone. In a pool whose workers serve several keys all
launches are without one, and have assignments (pool_assignments.py).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from clusterbroker.cluster.errors import LimitReached, PreconditionFailed
from clusterbroker.cluster.ids import LogIndex

from . import commands as c
from .changes import Change, LaunchEnded
from .levels import LEARNT_COSTS, STARTED_WORKERS, Levels
from .members import Members
from .passing import LogClock
from .pool_entities import NO_KEY, Assignment, Launch
from .pool_table import PoolHeld, PoolTable, check_count, pool_text

LAUNCHES_MAX: Final = 5000
"""Of a pool."""
NO_GENERATION: Final = LogIndex(0)
"""Of a launch without a group."""


class Launches:
    """The part of the map that has launches."""

    __slots__ = ("_clock", "_levels", "_members", "_table")

    def __init__(self, clock: LogClock, members: Members, levels: Levels, table: PoolTable) -> None:
        """None."""
        self._clock = clock
        self._members = members
        self._levels = levels
        self._table = table

    def launch_workers(self, command: c.LaunchWorkers, changes: list[Change]) -> tuple[Launch, ...]:
        """Fold LaunchWorkers."""
        held = self._table.controlled(command)
        check_count(command.workers)
        if held.pool.paused or held.pool.deleting:
            raise PreconditionFailed(f"{pool_text(held.pool.vhost, held.pool.name)} is paused: no worker begins")
        if len(held.launches) + len(command.workers) > LAUNCHES_MAX:
            raise LimitReached(
                f"{pool_text(held.pool.vhost, held.pool.name)} has {len(held.launches)} workers: {LAUNCHES_MAX} are "
                "allowed"
            )
        made = []
        for nth, (key, place, version) in enumerate(command.workers):
            group = held.groups.get(key)
            if key != NO_KEY and (group is None or held.keys_per_worker > 1):
                continue
            generation = NO_GENERATION if group is None else group.generation
            launch = Launch(f"w{self._clock.applied}-{nth}", held.pool.pool_id, key, place, version, generation)
            self._table.put_launch(held, launch, changes)
            made.append(launch)
        return tuple(made)

    def assign_workers(self, command: c.AssignWorkers, changes: list[Change]) -> tuple[str, ...]:
        """Fold AssignWorkers."""
        held = self._table.controlled(command)
        check_count(command.workers)
        if held.pool.paused:
            raise PreconditionFailed(f"{pool_text(held.pool.vhost, held.pool.name)} is paused: no worker begins")
        assigned = []
        for launch_id, key in command.workers:
            launch, group = held.launches.get(launch_id), held.groups.get(key)
            if launch is None or group is None or not launch.spare or launch.retired or launch.revoked:
                continue
            if held.keys_per_worker > 1:
                if self._assign_one_more(held, launch_id, key, changes):
                    assigned.append(launch_id)
                continue
            self._table.put_launch(held, replace(launch, key=key, generation=group.generation), changes)
            assigned.append(launch_id)
        return tuple(assigned)

    def _assign_one_more(self, held: PoolHeld, launch_id: str, key: str, changes: list[Change]) -> bool:
        known = held.assignments
        if known.get(launch_id, key) is not None or len(known.of_worker(launch_id)) >= held.keys_per_worker:
            return False
        known.put(Assignment(held.pool.pool_id, launch_id, key, self._clock.applied), changes)
        return True

    def retire_keys(self, command: c.RetireKeys, changes: list[Change]) -> tuple[tuple[str, str], ...]:
        """Fold RetireKeys."""
        held = self._table.controlled(command, deleting=True)
        check_count(command.keys)
        known = held.assignments
        return tuple(
            of for of in command.keys if (one := known.get(*of)) is not None and known.retire(one, command.why, changes)
        )

    def revoke_keys(self, command: c.RevokeKeys, changes: list[Change]) -> tuple[tuple[str, str], ...]:
        """Fold RevokeKeys."""
        held = self._table.controlled(command, deleting=True)
        check_count(command.keys)
        revoked = []
        for launch_id, key in command.keys:
            one = held.assignments.get(launch_id, key)
            if one is not None:
                held.assignments.end(one, changes)
                revoked.append((launch_id, key))
        return tuple(revoked)

    def revoke_workers(self, command: c.RevokeWorkers, changes: list[Change]) -> tuple[str, ...]:
        """Fold RevokeWorkers."""
        held = self._table.controlled(command)
        check_count(command.launches)
        revoked = []
        for launch_id in command.launches:
            launch = held.launches.get(launch_id)
            if launch is not None and not launch.revoked:
                self._table.put_launch(held, replace(launch, revoked=command.why or "revoked"), changes)
                revoked.append(launch_id)
        return tuple(revoked)

    def retire_workers(self, command: c.RetireWorkers, changes: list[Change]) -> tuple[str, ...]:
        """Fold RetireWorkers."""
        held = self._table.controlled(command, deleting=True)
        check_count(command.launches)
        retired = []
        for launch_id in command.launches:
            launch = held.launches.get(launch_id)
            if launch is not None and not launch.retired and not launch.revoked:
                self._table.put_launch(held, replace(launch, retired=command.why or "retired"), changes)
                retired.append(launch_id)
        return tuple(retired)

    def workers_gone(self, command: c.WorkersGone, changes: list[Change]) -> tuple[Launch, ...]:
        """Fold WorkersGone."""
        check_count(command.ended)
        ended = []
        for report in command.ended:
            held = self._table.launched.get(report.launch_id)
            if held is not None and self._may_report(command, held.launches[report.launch_id]):
                launch = held.launches[report.launch_id]
                end = LaunchEnded(launch, report.exit_status, report.peak_bytes, report.out_of_memory)
                self._end_launch(held, launch, end, changes)
                ended.append(launch)
        return tuple(ended)

    def _may_report(self, command: c.WorkersGone, launch: Launch) -> bool:
        """From feature level 6 on: its place alone, and the present process there."""
        if self._levels.level < STARTED_WORKERS or not self._members:
            return True
        member = self._members.get(command.node)
        return member is not None and member.incarnation == command.incarnation and launch.place == command.node

    def end_of_place(self, place: str, changes: list[Change]) -> None:
        """A member is forgotten: nobody is left who could report its launches (from feature level 6 on)."""
        if self._levels.level < STARTED_WORKERS:
            return
        for held in self._table.by_id.values():
            for launch in [launch for launch in held.launches.values() if launch.place == place]:
                self._end_launch(held, launch, LaunchEnded(launch), changes)

    def _end_launch(self, held: PoolHeld, launch: Launch, change: LaunchEnded, changes: list[Change]) -> None:
        for one in held.assignments.of_worker(launch.launch_id):
            held.assignments.end(one, changes)
        if change.peak_bytes > 0 and self._levels.level >= LEARNT_COSTS:
            held.learn(launch.key, change.peak_bytes)
        del held.launches[launch.launch_id], self._table.launched[launch.launch_id]
        held.forget(launch)
        changes.append(change)
