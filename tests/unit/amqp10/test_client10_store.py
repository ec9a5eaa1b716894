"""The file of unsettled deliveries: what is safe stays, whatever a crash leaves of the rest."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterbroker.amqp10.client import FileStore, StoreError
from clusterbroker.amqp10.client.store import COMPACT_BYTES, Kept, LinkId
from clusterbroker.broker.wire.amqp10.performatives import Accepted, Error, Rejected

OUT, IN = LinkId("c", "orders", False), LinkId("c", "orders", True)


def saved(store: FileStore) -> None:
    work = store.take()
    assert work is not None
    work()


@contextmanager
def files_of(size: int) -> Iterator[None]:
    """No file grows beyond that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_was_put_is_there_in_its_order(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    assert store.load(OUT) is None, "a link that was never here"
    store.open(OUT)
    for tag in (b"b", b"a", b"c"):
        store.put(OUT, tag, None, b"payload of " + tag)
    store.put(OUT, b"b", Rejected(Error("amqp:not-found", "gone")), b"payload of b")
    store.forget(OUT, b"a")
    store.put(IN, b"b", Accepted(), b"")
    store.close()
    again = FileStore(tmp_path / "s")
    found = again.load(OUT)
    assert found is not None
    assert list(found.items()) == [
        (b"b", Kept(Rejected(Error("amqp:not-found", "gone")), b"payload of b")),
        (b"c", Kept(None, b"payload of c")),
    ]
    assert again.load(IN) == {b"b": Kept(Accepted(), b"")}
    again.close_link(OUT)
    again.close()
    assert FileStore(tmp_path / "s").load(OUT) is None


def test_a_file_that_was_cut_anywhere_has_what_was_whole(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    lengths = [(tmp_path / "s").stat().st_size]
    for number in range(4):
        store.put(OUT, b"%d" % number, None, b"x" * number * 50)
        saved(store)
        lengths.append((tmp_path / "s").stat().st_size)
    store.close()
    whole = (tmp_path / "s").read_bytes()
    for cut in range(len(whole) + 1):
        (tmp_path / "t").write_bytes(whole[:cut])
        found = FileStore(tmp_path / "t")
        count = sum(length <= cut for length in lengths[1:])
        assert list(found.load(OUT) or {}) == [b"%d" % number for number in range(count)]
        found.put(OUT, b"new", None, b"y")
        found.close()
        after = FileStore(tmp_path / "t")
        assert list(after.load(OUT) or {}) == [*(b"%d" % number for number in range(count)), b"new"]
        after.close()


def test_a_byte_that_is_wrong_ends_the_file_before_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    for tag in (b"a", b"b"):
        store.put(OUT, tag, None, b"payload")
        saved(store)
    store.close()
    data = bytearray((tmp_path / "s").read_bytes())
    data[-3] ^= 1
    (tmp_path / "s").write_bytes(data)
    assert list(FileStore(tmp_path / "s").load(OUT) or {}) == [b"a"]


def test_a_long_file_is_written_anew(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    store.open(OUT)
    store.put(OUT, b"stays", None, b"kept")
    for number in range(40):
        store.put(OUT, b"%d" % number, None, bytes(100_000))
        store.forget(OUT, b"%d" % number)
        saved(store)
    assert (tmp_path / "s").stat().st_size < COMPACT_BYTES * 2
    store.put(OUT, b"late", None, b"")
    store.close()
    assert list(FileStore(tmp_path / "s").load(OUT) or {}) == [b"stays", b"late"]


def test_a_file_has_one_program(tmp_path: Path) -> None:
    first = FileStore(tmp_path / "s")
    with pytest.raises(StoreError, match="in use by another process"):
        FileStore(tmp_path / "s")
    first.close()
    FileStore(tmp_path / "s").close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("something else")
    with pytest.raises(StoreError, match="no file of unsettled deliveries"):
        FileStore(tmp_path / "s")
    with pytest.raises(StoreError, match="cannot be opened"):
        FileStore(tmp_path / "none" / "s")


def test_what_could_not_be_written_as_a_whole_is_written_when_there_is_room(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    store.put(OUT, b"a", None, b"payload")
    saved(store)
    store.put(OUT, b"b", None, b"payload")
    with files_of((tmp_path / "s").stat().st_size + 10), pytest.raises(StoreError, match="cannot be written"):
        saved(store)
    store.put(OUT, b"c", None, b"payload")
    store.close()
    again = FileStore(tmp_path / "s")
    assert list(again.load(OUT) or {}) == [b"a", b"b", b"c"]
    again.close()


def test_a_file_that_could_not_be_written_anew_is_later(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    for number in range(12):
        store.put(OUT, b"%d" % number, None, bytes(100_000))
        if number < 11:
            store.forget(OUT, b"%d" % number)
            saved(store)
    with files_of(1000), pytest.raises(StoreError, match="cannot be written anew"):
        saved(store)
    store.put(OUT, b"late", None, b"")
    saved(store)
    store.close()
    again = FileStore(tmp_path / "s")
    assert list(again.load(OUT) or {}) == [b"11", b"late"]
    again.close()


def test_a_file_is_free_when_it_could_not_be_closed_as_a_whole(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    store.put(OUT, b"a", None, b"payload")
    with files_of(10), pytest.raises(StoreError, match="cannot be written"):
        store.close()
    again = FileStore(tmp_path / "s")
    assert again.load(OUT) is None
    again.close()
