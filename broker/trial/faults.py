"""The faults of a chaos round: planned by a seed alone, then done to real processes, then undone.

A plan comes from its seed alone; who the owner is only the running cluster knows, so that a plan names it as OWNER.
However a round ends, `heal` leaves a cluster of running nodes without cuts: whatever is missing afterwards, the broker
has lost.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from clusterbroker.broker.trial.nodes import Cluster, TrialError
from clusterbroker.broker.trial.relay import Pair

OWNER: Final = "owner"
FULL_FILE: Final = "ballast"


class Kind(StrEnum):
    """What can be done to a cluster."""

    KILL = "kill -9"
    KILL_TWO = "kill -9 two nodes"
    KILL_ALL = "kill -9 all nodes"
    STOP = "SIGTERM"
    BLINK = "SIGSTOP, shorter than a lease"
    FREEZE = "SIGSTOP, longer than a lease"
    STORM = "killed and started over and over"
    FULL_DISK = "full disk"
    ISOLATE = "cut off from all others"
    DEAF = "hears nothing from the others"
    MUTE = "is heard by no other"
    PAIR = "cut off from one other"
    APART = "all cut off from each other"
    ALONE = "cut off while another one is killed"
    DELAY = "slow network"
    RESET = "connections reset"
    BLOCK = "datagrams blocked"
    REFUSE = "its port refuses, and it lives"
    LOSE_JOURNAL = "its journal is gone"
    OLD_JOURNAL = "its journal is an old one"
    LOSE_RAFT = "its Raft log is gone"
    DAMAGE = "bits of its journal flip while another is down"
    WRONG_CLOCK = "started with a wall clock that is far behind"
    STAND_STILL = "its machine stands still, and its clocks"


PROCESS_FAULTS: Final = (Kind.KILL, Kind.KILL_TWO, Kind.KILL_ALL, Kind.STOP, Kind.BLINK, Kind.FREEZE, Kind.STORM)
NETWORK_FAULTS: Final = (
    Kind.ISOLATE, Kind.DEAF, Kind.MUTE, Kind.PAIR, Kind.APART, Kind.ALONE, Kind.DELAY, Kind.RESET,
    Kind.BLOCK, Kind.REFUSE,
)  # fmt: skip
DIRECTORY_FAULTS: Final = (Kind.LOSE_JOURNAL, Kind.OLD_JOURNAL, Kind.LOSE_RAFT, Kind.DAMAGE)
CLOCK_FAULTS: Final = (Kind.WRONG_CLOCK, Kind.STAND_STILL)
HOURS_BEHIND: Final = (1, 24, 31 * 24, 366 * 24)
"""A clock that is ahead would date messages with a TTL so late that a round's end would wait for them for as long."""
FLIPS_MAX: Final = 3
STOPPED_S: Final = 30.0
STORM_PAUSE_S: Final = (0.05, 0.8)


@dataclass(frozen=True, slots=True)
class Step:
    """One fault: to whom, for how long, and after which calm."""

    kind: Kind
    node: str
    """a name, or OWNER"""
    calm_s: float
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.kind} ({self.node}, {self.lasts_s:.1f} s)"


def plan(chance: random.Random, names: list[str], kinds: tuple[Kind, ...], steps_max: int = 2) -> list[Step]:
    """A round's steps. Half of them aim at the owner, where most is to be lost."""
    steps = []
    for _ in range(chance.randint(1, steps_max)):
        kind = chance.choice(kinds)
        node = OWNER if chance.random() < 0.5 else chance.choice(names)
        lasts_s = {Kind.BLINK: chance.uniform(0.2, 1.0), Kind.FREEZE: chance.uniform(3.0, 6.0)}.get(
            kind, chance.uniform(0.3, 4.0)
        )
        steps.append(Step(kind, node, round(chance.uniform(0.3, 1.5), 2), round(lasts_s, 2)))
    return steps


def directions(kind: Kind, node: str, names: Sequence[str], chance: random.Random) -> list[Pair]:
    """Which directions a network fault at a node is about."""
    others = [name for name in names if name != node]
    if kind is Kind.APART:
        return [(one, other) for one in names for other in names if one != other]
    if kind is Kind.PAIR:
        others = [chance.choice(others)]
    outward, inward = [(node, other) for other in others], [(other, node) for other in others]
    return {Kind.DEAF: inward, Kind.MUTE: outward}.get(kind, outward + inward)


class Nemesis:
    """Carries steps out on a cluster whose clients are at work."""

    def __init__(self, cluster: Cluster, queue: str, small_disks: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        self.queue = queue
        self.small_disks = small_disks
        """nodes whose data directory is a small file system of its own"""
        self._down: list[str] = []
        self._frozen: list[str] = []
        self._aside: dict[Path, Path] = {}
        """Parts of data directories, and where the right ones are while something else is in their place."""
        self._flipped: list[tuple[Path, int, int]] = []
        """File, place and right value of bytes that are wrong."""

    def kinds(self) -> tuple[Kind, ...]:
        """What this cluster can be put through."""
        network = NETWORK_FAULTS if self.cluster.wires is not None else ()
        clocks = CLOCK_FAULTS if self.cluster.clocks else ()
        full = (Kind.FULL_DISK,) if self.small_disks else ()
        return PROCESS_FAULTS + DIRECTORY_FAULTS + clocks + network + full

    async def carry_out(self, step: Step, chance: random.Random) -> str:
        """One step from its calm to its end; what was done, with the node's name. Raises TrialError."""
        await asyncio.sleep(step.calm_s)
        names = self.cluster.names
        node = (await self.cluster.owner(self.queue) or chance.choice(names)) if step.node == OWNER else step.node
        if step.kind is Kind.FULL_DISK:
            node = chance.choice(self.small_disks)
        await self._do(step, node, chance)
        return f"{step.kind} ({node}, {step.lasts_s:.1f} s)"

    async def _do(self, step: Step, node: str, chance: random.Random) -> None:
        names = self.cluster.names
        if step.kind in (Kind.KILL, Kind.KILL_TWO, Kind.KILL_ALL, Kind.STOP):
            others = [name for name in names if name != node]
            hit = [node]
            if step.kind is Kind.KILL_TWO:
                hit.append(chance.choice(others))
            elif step.kind is Kind.KILL_ALL:
                hit += others
            for name in hit:
                await (self.cluster.stop(name) if step.kind is Kind.STOP else self.cluster.kill(name))
                self._down.append(name)
            await asyncio.sleep(step.lasts_s)
            await self._start_again()
        elif step.kind is Kind.DAMAGE:
            await self._damage(step, node, chance)
        elif step.kind in DIRECTORY_FAULTS:
            await self._lose_part(step, node, chance)
        elif step.kind is Kind.WRONG_CLOCK:
            await self._start_with_a_wrong_clock(step, node, chance)
        elif step.kind is Kind.STAND_STILL:
            await self._stand_still(step, node)
        elif step.kind is Kind.REFUSE:
            wires = self.cluster.wires
            assert wires is not None, "network faults are planned only where there are wires"
            await wires.refuse(node, True, both_ways=True)
            await asyncio.sleep(step.lasts_s)
            await wires.refuse(node, False, both_ways=True)
        elif step.kind is Kind.STORM:
            await self._storm(step.lasts_s, chance)
        elif step.kind in (Kind.BLINK, Kind.FREEZE):
            self.cluster.signal(node, signal.SIGSTOP)
            self._frozen.append(node)
            await asyncio.sleep(step.lasts_s)
            self._thaw()
        elif step.kind is Kind.FULL_DISK:
            fill(self.cluster.data_dir(node))
            await asyncio.sleep(step.lasts_s)
            empty(self.cluster.data_dir(node))
        else:
            wires = self.cluster.wires
            assert wires is not None, "network faults are planned only where there are wires"
            pairs = directions(step.kind, node, names, chance)
            if step.kind is Kind.RESET:
                wires.reset(pairs)
            elif step.kind is Kind.BLOCK:
                wires.block(pairs)
            elif step.kind is Kind.DELAY:
                wires.delay(pairs, chance.uniform(0.01, 0.3))
            else:
                wires.cut(pairs)
            if step.kind is Kind.ALONE:
                other = chance.choice([name for name in names if name != node])
                await self.cluster.kill(other)
                self._down.append(other)
            await asyncio.sleep(step.lasts_s)
            wires.heal()
            await self._start_again()

    async def _lose_part(self, step: Step, node: str, chance: random.Random) -> None:
        """Of one node's data directory, while it is dead or all are. It is rebuilt; or, where it may have the only copy
        of something, it refuses to start, and its operator puts back what was there."""
        part = self.cluster.data_dir(node) / ("raft" if step.kind is Kind.LOSE_RAFT else "journal")
        old = part.with_name("journal.old-by-trial")
        if step.kind is Kind.OLD_JOURNAL:
            await self.cluster.kill(node)
            shutil.rmtree(old, ignore_errors=True)
            await asyncio.to_thread(shutil.copytree, part, old)
            await self.cluster.start(node)
            await asyncio.sleep(step.lasts_s)
        hit = self.cluster.names if chance.random() < 0.5 else [node]
        for name in hit:
            await self.cluster.kill(name)
            self._down.append(name)
        right = part.with_name(f"{part.name}.right-by-trial")
        shutil.rmtree(right, ignore_errors=True)
        part.rename(right)
        self._aside[part] = right
        if old.exists():
            old.rename(part)
        await asyncio.sleep(min(step.lasts_s, 1.0))
        await self._start_rebuilt(node)

    async def _damage(self, step: Step, node: str, chance: random.Random) -> None:
        """Of the journal of one node, which perhaps begins anew, while another one is down: a third one has all."""
        other = chance.choice([name for name in self.cluster.names if name != node])
        await self.cluster.kill(other)
        self._down.append(other)
        await asyncio.sleep(min(step.lasts_s, 0.5))
        begins_anew = chance.random() < 0.5
        if begins_anew:
            await self.cluster.kill(node)
        self._flip(node, chance)
        if begins_anew:
            self._down.append(node)
        else:
            await asyncio.sleep(step.lasts_s)
        await self._start_rebuilt(node)

    def _flip(self, node: str, chance: random.Random) -> None:
        """Some bits of what is written in one of its segments."""
        segments = sorted((self.cluster.data_dir(node) / "journal" / "segments").glob("*.seg"))
        written = {path: len(path.read_bytes().rstrip(b"\0")) for path in segments}
        paths = [path for path, size in written.items() if size]
        for _ in range(chance.randint(1, FLIPS_MAX) if paths else 0):
            path = chance.choice(paths)
            at = chance.randrange(written[path])
            with open(path, "r+b") as file:
                file.seek(at)
                (right,) = file.read(1)
                file.seek(at)
                file.write(bytes((right ^ 1 << chance.randrange(8),)))
            self._flipped.append((path, at, right))

    async def _start_rebuilt(self, node: str) -> None:
        """Whoever is down. A node that may have the only copy of something ends: its operator puts back what was."""
        try:
            await self._start_again()
        except TrialError:
            if self.cluster.pid(node) is not None:
                raise
            self._put_back()
            self._down = [name for name in self.cluster.names if self.cluster.pid(name) is None]
            await self._start_again()
        self._aside.clear()
        self._flipped.clear()

    def _put_back(self) -> None:
        aside, self._aside = self._aside, {}
        for part, right in aside.items():
            shutil.rmtree(part, ignore_errors=True)
            right.rename(part)
        for path, at, octet in reversed(self._flipped):
            with suppress(FileNotFoundError), open(path, "r+b") as file:
                file.seek(at)
                file.write(bytes((octet,)))
        self._flipped.clear()

    async def _start_with_a_wrong_clock(self, step: Step, node: str, chance: random.Random) -> None:
        """Its battery was empty; after a while it is mended, and the node begins anew."""
        clocks = self.cluster.clocks[node]
        for behind_h in (chance.choice(HOURS_BEHIND) * chance.uniform(1, 2), 0):
            await self.cluster.kill(node)
            self._down.append(node)
            clocks.began(-3600.0 * behind_h)
            await self._start_again()
            if behind_h:
                await asyncio.sleep(step.lasts_s)

    async def _stand_still(self, step: Step, node: str) -> None:
        """As a virtual machine that its hypervisor pauses. What the process still did behind the signal is not taken
        back: no clock goes back."""
        self.cluster.signal(node, signal.SIGSTOP)
        self._frozen.append(node)
        end_s = time.monotonic() + STOPPED_S
        while not stands(self.cluster.pid(node)):
            if time.monotonic() > end_s:
                raise TrialError(f"node {node} was not stopped within {STOPPED_S:g} s of SIGSTOP")
            await asyncio.sleep(0.001)
        began_s = time.monotonic()
        await asyncio.sleep(step.lasts_s)
        self.cluster.clocks[node].stood(time.monotonic() - began_s)
        self._thaw()

    async def _storm(self, lasts_s: float, chance: random.Random) -> None:
        """Nodes are killed at any moment of their start, or soon after it."""
        end_s = time.monotonic() + lasts_s
        starting: list[asyncio.Task[None]] = []
        while time.monotonic() < end_s:
            name = chance.choice(self.cluster.names)
            await self.cluster.kill(name)
            starting.append(asyncio.create_task(self.cluster.start(name)))
            await asyncio.sleep(chance.uniform(*STORM_PAUSE_S))
        await asyncio.gather(*starting, return_exceptions=True)  # those of nodes that were killed again have failed
        self._down += [name for name in self.cluster.names if self.cluster.pid(name) is None]
        await self._start_again()

    async def _start_again(self) -> None:
        """All that are down, at once: after a power cut they wait for each other."""
        down, self._down = self._down, []
        results = await asyncio.gather(*(self.cluster.start(name) for name in down), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _thaw(self) -> None:
        frozen, self._frozen = self._frozen, []
        for name in frozen:
            self.cluster.signal(name, signal.SIGCONT)

    async def heal(self) -> None:
        """Undoes whatever a failed step left behind, and finds nodes that ended by themselves. Raises TrialError."""
        self._thaw()
        for clocks in self.cluster.clocks.values():
            clocks.mend()
        if self.cluster.wires is not None:
            self.cluster.wires.heal()
        for name in self.small_disks:
            empty(self.cluster.data_dir(name))
        await self._start_again()
        ended = [name for name in self.cluster.names if self.cluster.pid(name) is None]
        if ended:
            raise TrialError(f"ended by themselves: {', '.join(ended)}")


def stands(pid: int | None) -> bool:
    """Whether all threads of a process are stopped (Linux), or it is gone."""
    try:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return set(states) <= {"T", "t"}


def fill(directory: Path) -> None:
    """Takes all the space that the directory's file system has."""
    with suppress(OSError), open(directory / FULL_FILE, "wb") as ballast:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    os.write(ballast.fileno(), bytes(size))


def empty(directory: Path) -> None:
    """Gives it back."""
    (directory / FULL_FILE).unlink(missing_ok=True)


def mount_small_disk(directory: Path, mebibytes: int) -> str:
    """Mounts a file system in memory at a directory; "" or why that cannot be done here."""
    if os.geteuid() != 0:
        return "a small file system can be mounted by root only"
    directory.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "tmpfs", str(directory)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mount does not work here: {error}"
    return "" if done.returncode == 0 else f"mount does not work here: {done.stderr.strip()}"


def unmount(directory: Path) -> None:
    """Takes it away again."""
    subprocess.run(["umount", "-l", str(directory)], capture_output=True, timeout=10, check=False)  # noqa: S603, S607
