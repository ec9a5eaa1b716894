"""Bindings are found by either end, one or many, in the order of binding."""

from clusterbroker.cluster.wiring.binding_table import BindingTable
from clusterbroker.cluster.wiring.entities import Binding


def binding(source: str, queue: str, key: str = "", **arguments: object) -> Binding:
    return Binding("/", source, queue, "queue", key, dict(arguments))


def test_found_by_source_key_and_destination() -> None:
    table = BindingTable()
    a, b, c, d = binding("x", "q", "k"), binding("x", "r", "k"), binding("x", "q", "l"), binding("y", "q", "k")
    for entry in (a, b, c, d):
        table.add(entry)
    assert table.from_source("x") == (a, b, c)
    assert table.from_source("x", "k") == (a, b)
    assert table.from_source("x", "none") == ()
    assert table.to_destination("queue", "q") == (a, c, d)
    assert table.to_destination("exchange", "q") == ()
    table.remove(a)
    assert table.from_source("x", "k") == (b,)
    assert table.to_destination("queue", "q") == (c, d)
    for entry in (b, c, d):
        assert table.leaves(entry.source)
        table.remove(entry)
    assert not table.leaves("x")
    assert len(table) == 0
    assert list(table) == []


def test_arguments_are_part_of_the_identity() -> None:
    table = BindingTable()
    table.add(binding("x", "q", h=1))
    assert table.find(binding("x", "q", h=1)) is not None
    assert table.find(binding("x", "q", h=True)) is None
    assert table.find(binding("x", "q")) is None
    table.add(binding("x", "q", h=True))
    assert len(table.from_source("x", "")) == 2


def test_many_bindings_of_one_key_are_added_and_removed_quickly() -> None:
    table = BindingTable()
    many = [binding("x", f"q{n}") for n in range(20_000)]
    for entry in many:
        table.add(entry)
    for entry in many:
        table.remove(entry)
    assert len(table) == 0
