"""Which parts of a data directory belong together: the table, every point of a crash, and what went back in time."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from clusterbroker.broker.server.binding import (
    JOURNAL,
    NOTHING,
    RAFT,
    WIRING,
    Found,
    Listed,
    Remedy,
    Verdict,
    judge,
    remedy,
    trouble,
)
from clusterbroker.journal.stamp import Stamp, packed, unpacked

DISK = "this disk"
LISTED = Listed("journal 1", 7)


def stamped(starts: int, part_id: str = "journal 1", disk_id: str = DISK) -> Found:
    return Found(True, Stamp(disk_id, part_id, starts))


@pytest.mark.parametrize(
    ("listed", "found", "lived", "verdict"),
    [
        (None, NOTHING, False, Verdict.NEW),
        (None, NOTHING, True, Verdict.MISSING),
        (None, Found(True, None), True, Verdict.UNBOUND),
        (None, stamped(8), False, Verdict.UNBOUND),
        (None, stamped(8, disk_id="another"), False, Verdict.FOREIGN),
        (LISTED, NOTHING, False, Verdict.MISSING),
        (LISTED, Found(True, None), False, Verdict.FOREIGN),
        (LISTED, stamped(7, disk_id="another"), False, Verdict.FOREIGN),
        (LISTED, stamped(7, part_id="journal 2"), False, Verdict.FOREIGN),
        (LISTED, stamped(6), False, Verdict.OLDER),
        (LISTED, stamped(7), False, Verdict.SOUND),
        (LISTED, stamped(8), False, Verdict.SOUND),
        (LISTED, stamped(10), False, Verdict.AHEAD),
    ],
)
def test_the_table(listed: Listed | None, found: Found, lived: bool, verdict: Verdict) -> None:
    assert judge(DISK, 8, listed, found, lived) is verdict
    if verdict.is_damage:
        assert "\n" not in trouble(JOURNAL, verdict, 8, listed, found)


def test_what_is_done() -> None:
    for verdict in Verdict:
        if not verdict.is_damage:
            assert remedy(JOURNAL, verdict, member=False, others=False) is Remedy.USE
            continue
        assert remedy(JOURNAL, verdict, member=False, others=False) is Remedy.REFUSE
        assert remedy(RAFT, verdict, member=True, others=False) is Remedy.REFUSE
    assert remedy(JOURNAL, Verdict.MISSING, member=True, others=True) is Remedy.REBUILD
    assert remedy(RAFT, Verdict.OLDER, member=True, others=True) is Remedy.REBUILD
    assert remedy(RAFT, Verdict.AHEAD, member=True, others=True) is Remedy.REFUSE


def test_a_stamp_on_disk() -> None:
    assert unpacked(packed(Stamp("d", "p", 3))) == Stamp("d", "p", 3)


class Crash(Exception):
    """The start ends here."""


@dataclass
class Directory:
    """A model of one: what is durable. A start is the steps of the module's text; it may crash before any of them."""

    starts: int = 0
    listed: dict[str, Listed] = field(default_factory=dict)
    stamps: dict[str, Stamp] = field(default_factory=dict)
    spoke: int = 0

    def start(self, steps: int, parts: tuple[str, ...] = (RAFT, JOURNAL), together: bool = False) -> None:
        left = steps

        def step() -> None:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1

        number = self.starts + 1
        for part in parts:
            stamp = self.stamps.get(part)
            found = NOTHING if stamp is None else Found(True, stamp)
            verdict = judge(DISK, self.starts, self.listed.get(part), found)
            assert not verdict.is_damage, f"{part} is sound, and said to be: {verdict.value}"
            step()
            self.stamps[part] = Stamp(DISK, f"{part} 1" if stamp is None else stamp.part_id, number)
            if not together:
                self._list((part,), number, step)
        if together:
            self._list(parts, number, step)
        step()
        self.spoke = number

    def _list(self, parts: tuple[str, ...], number: int, step: object) -> None:
        assert callable(step), "a step may be where it ends"
        step()
        self.listed |= {part: Listed(self.stamps[part].part_id, number) for part in parts}
        self.starts = number


STEPS = 5


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("first", range(STEPS))
@pytest.mark.parametrize("second", range(STEPS))
def test_no_crash_makes_a_sound_directory_look_damaged(first: int, second: int, together: bool) -> None:
    """At its first start, and after others, twice in a row."""
    parts = (WIRING, JOURNAL) if together else (RAFT, JOURNAL)
    for before in (0, 3):
        directory = Directory()
        for _ in range(before):
            directory.start(99, parts, together)
        for steps in (first, second):
            whole = (4 if together else 5) <= steps
            if whole:
                directory.start(steps, parts, together)
            else:
                with pytest.raises(Crash):
                    directory.start(steps if not together else min(steps, 3), parts, together)
        directory.start(99, parts, together)


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_part_of_an_earlier_start_is_seen(steps: int) -> None:
    """Whatever became of the start behind the one in which it spoke last."""
    directory = Directory()
    directory.start(99)
    old = deepcopy(directory.stamps)
    directory.start(99)
    if steps < STEPS:
        with pytest.raises(Crash):
            directory.start(steps)
    for part in (RAFT, JOURNAL):
        verdict = judge(DISK, directory.starts, directory.listed[part], Found(True, old[part]))
        assert verdict is Verdict.OLDER
