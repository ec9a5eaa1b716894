"""The identity of a data directory, and the parts of one: judged, stamped, listed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.server import directory as directories
from clusterbroker.broker.server.binding import JOURNAL, NOTHING, WIRING, Found
from clusterbroker.broker.server.directory import (
    DamagedDirectory,
    DamagedIdentity,
    Identity,
    Parts,
    WrongIdentity,
    identity_of,
    keep,
    put_aside,
    stored,
)
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.cluster.log_store import LogStore
from clusterbroker.journal.index import Index
from clusterbroker.journal.stamp import Stamp


def test_a_directory_is_formatted_once(tmp_path: Path) -> None:
    assert stored(tmp_path) is None
    made = identity_of(tmp_path, "a", "c1")
    assert (made.name, made.cluster_id, len(made.disk_id)) == ("a", "c1", 32)
    assert stored(tmp_path) == made
    assert identity_of(tmp_path, "a", "c1") == made


def test_a_directory_keeps_the_cluster_that_it_has_joined(tmp_path: Path) -> None:
    made = identity_of(tmp_path, "a", "c1")
    assert identity_of(tmp_path, "a", "c2") == made


def test_two_directories_are_two_disks(tmp_path: Path) -> None:
    disks = []
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        disks.append(identity_of(tmp_path / name, "a", "c1").disk_id)
    assert disks[0] != disks[1]


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    identity_of(tmp_path, "a", "c1")
    with pytest.raises(WrongIdentity, match="belongs to node 'a', not to 'b': start it as --name a"):
        identity_of(tmp_path, "b", "c1")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "name": "a", "nonsense": 2}'])
def test_a_damaged_identity_is_not_guessed(tmp_path: Path, text: str) -> None:
    (tmp_path / "identity").write_text(text)
    with pytest.raises(DamagedIdentity, match="damaged \\("):
        identity_of(tmp_path, "a", "c1")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "identity").write_text('{"format": 3, "name": "a", "disk_id": "d", "cluster_id": "c"}')
    with pytest.raises(WrongIdentity, match="written by a newer"):
        stored(tmp_path)


def test_what_is_stored_is_what_was_made(tmp_path: Path) -> None:
    assert identity_of(tmp_path, "a", "") == Identity("a", stored(tmp_path).disk_id, "")  # type: ignore[union-attr]


def started(directory: Path, *parts: str) -> dict[str, Stamp]:
    """One start of a node that has these parts; their stamps."""
    at = Parts(directory)
    at.keep_identity()
    listed = at.identity.parts
    stamps = {
        part: at.stamp_of(
            Found(True, Stamp(at.identity.disk_id, listed[part].part_id, listed[part].starts))
            if part in listed
            else NOTHING
        )
        for part in parts
    }
    at.list_parts(stamps)
    return stamps


def test_starts_are_counted_and_parts_keep_their_ids(tmp_path: Path) -> None:
    first = started(tmp_path, JOURNAL, WIRING)
    second = started(tmp_path, JOURNAL, WIRING)
    assert [stamp.starts for stamp in (*first.values(), *second.values())] == [1, 1, 2, 2]
    assert first[JOURNAL].part_id == second[JOURNAL].part_id != second[WIRING].part_id
    assert first[JOURNAL].disk_id == second[WIRING].disk_id
    known = stored(tmp_path)
    assert known is not None
    assert (known.starts, known.stopped, known.parts[JOURNAL].starts) == (2, False, 2)


def test_an_end_in_order_is_noted_until_the_next_start(tmp_path: Path) -> None:
    started(tmp_path, JOURNAL)
    at = Parts(tmp_path)
    at.stopped()
    assert Parts(tmp_path).identity.stopped is False, "that start has listed nothing, so it did not stop either"
    at.list_parts({})
    at.stopped()
    assert Parts(tmp_path).identity.stopped
    started(tmp_path, JOURNAL)
    assert not Parts(tmp_path).identity.stopped


def test_a_missing_part_is_told_in_one_line(tmp_path: Path) -> None:
    started(tmp_path, JOURNAL, WIRING)
    before = (tmp_path / "identity").read_bytes()
    with pytest.raises(
        DamagedDirectory, match=r"journal: it is missing or empty, but .*\. Nothing was changed\. Put"
    ) as it:
        Parts(tmp_path).check(JOURNAL, NOTHING)
    assert it.value.exit_code == 70
    assert "\n" not in str(it.value)
    assert (tmp_path / "identity").read_bytes() == before


def test_what_a_release_without_stamps_has_counted_goes_on(tmp_path: Path) -> None:
    (tmp_path / "starts").write_text("41")
    assert started(tmp_path, JOURNAL)[JOURNAL].starts == 42
    assert not (tmp_path / "starts").exists()


def test_an_identity_of_format_1(tmp_path: Path) -> None:
    (tmp_path / "starts").write_text("3")
    old = {"format": 1, "name": "a", "disk_id": "d", "cluster_id": "c"}
    (tmp_path / "identity").write_text(json.dumps(old))
    assert stored(tmp_path) == Identity("a", "d", "c", 3)
    keep(tmp_path, Identity("a", "d", "c", 4))
    assert json.loads((tmp_path / "identity").read_text())["format"] == 2
    assert stored(tmp_path) == Identity("a", "d", "c", 4)


def test_a_lost_identity_is_what_all_parts_say(tmp_path: Path) -> None:
    stamps = started(tmp_path, JOURNAL, WIRING)
    (tmp_path / "identity").unlink()
    at = Parts(tmp_path)
    at.recognise(stamps.values())
    assert (at.identity.disk_id, at.number) == (stamps[JOURNAL].disk_id, 2)
    at.check(JOURNAL, Found(True, stamps[JOURNAL]))
    at = Parts(tmp_path)
    at.recognise((stamps[WIRING], None))
    with pytest.raises(DamagedDirectory):
        at.check(WIRING, Found(True, stamps[WIRING]))


def test_the_journal_keeps_its_stamp(tmp_path: Path) -> None:
    index = Index(tmp_path)
    assert index.stamp is None
    index.put_stamp(Stamp("disk", "journal", 3))
    index.close()
    index = Index(tmp_path, readonly=True)
    assert index.stamp == Stamp("disk", "journal", 3)
    index.close()


def test_what_is_put_aside_takes_no_other_name(tmp_path: Path) -> None:
    places = []
    for _ in range(2):
        (tmp_path / "raft").mkdir()
        places.append(put_aside(tmp_path / "raft"))
    assert len(set(places)) == 2
    assert all(place.name.startswith("raft.damaged-") for place in places)


class Crash(Exception):
    """The process ends here."""


async def test_a_start_that_ends_at_any_write_is_followed_by_one_that_finds_all_sound(
    start: Callable[..., Awaitable[NodeShell]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each durable write of the binding, in a fresh directory and in one that has been used."""
    writes = 0

    def crashing(real: Callable[..., None], at: int) -> Callable[..., None]:
        def write(*arguments: Any) -> None:
            nonlocal writes
            writes += 1
            if writes == at:
                raise Crash
            real(*arguments)

        return write

    whole = []
    for used in (False, True):
        for at in range(1, 6):
            directory = tmp_path / f"{used} {at}"
            if used:
                await (await start(data_dir=directory)).stop()
            writes = 0
            shell: NodeShell | None = None
            with monkeypatch.context() as patched:
                patched.setattr(Index, "put_stamp", crashing(Index.put_stamp, at))
                patched.setattr(LogStore, "put_stamp", crashing(LogStore.put_stamp, at))
                patched.setattr(directories, "keep", crashing(directories.keep, at))
                with contextlib.suppress(Crash):
                    shell = await start(data_dir=directory)
            if shell is not None:
                whole.append((used, at))
                await shell.stop()
            known = stored(directory)
            shell = await start(data_dir=directory)
            assert shell.storage.incarnation == (known.starts if known is not None else 0) + 1
            await shell.stop()
    assert whole == [(False, 5), (True, 5)], "these are all writes that there are"
