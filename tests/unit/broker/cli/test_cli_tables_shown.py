"""What people and programs are shown: cells, columns, order, filters, and that no name drives a terminal."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from clusterbroker.broker.cli import tables
from clusterbroker.broker.cli.exit_codes import USAGE, Failed
from clusterbroker.broker.cli.tables import (
    Column,
    Table,
    Wish,
    counted,
    fits,
    moment,
    number,
    pairs,
    pattern,
    rate,
    size,
    span,
    text,
    volume,
)
from clusterbroker.broker.cli.watching import normalised

TABLE = Table((Column("name"), Column("ready", "messages.ready", number), Column("owner", wide=True)), narrow=True)
ROWS: list[dict[str, Any]] = [
    {"name": "Orders", "messages": {"ready": 5}, "owner": "a", "other": 1},
    {"name": "mails", "messages": {"ready": 1_234_567}, "owner": "b"},
    {"name": "idle"},
]


@pytest.mark.parametrize(
    ("show", "value", "shown"),
    [
        (text, None, "-"), (text, "", "-"), (text, [], "-"), (text, True, "yes"), (text, False, "no"),
        (text, ["a", "b"], "a, b"), (text, {"a": [1]}, '{"a": [1]}'), (text, "a\x1b[2Jb", "a\\x1b[2Jb"),
        (text, {"k": "\x1b\u202e"}, '{"k": "\\u001b\\u202e"}'),
        (pattern, r"^a\.b", r"^a\.b"), (pattern, "\x1b", "\\x1b"), (text, r"a\b", r"a\\b"),
        (number, 1_234_567, "1,234,567"), (number, 0, "0"), (number, None, "-"), (number, "n", "n"),
        (size, 0, "0 B"), (size, 1023, "1023 B"), (size, 1024, "1.0 KiB"), (size, 200 << 20, "200 MiB"),
        (size, 3 << 40, "3.0 TiB"), (size, 5000 << 40, "5000 TiB"), (size, None, "-"),
        (rate, 0, "-"), (rate, 0.25, "0.2/s"), (rate, 12.34, "12.3/s"), (rate, 45_600, "45.6k/s"),
        (rate, 3e6, "3.0M/s"),
        (rate, 4e9, "4000M/s"), (rate, None, "-"),
        (volume, 0, "-"), (volume, None, "-"), (volume, 1536, "1.5 KiB/s"),
        (pairs, {"a": 1, "b": "x", "c": {"d": [1]}}, 'a=1, b=x, c={"d": [1]}'), (pairs, {}, "-"), (pairs, None, "-"),
        (span, 7, "7 ms"), (span, 61_000, "1m 1s"), (span, 100_000_000, "1d 3h"), (span, None, "-"),
        (moment, 1_795_290_640_000, "2026-11-21 19:50:40"), (moment, None, "-"),
    ],
)  # fmt: skip
def test_cells(show: Any, value: Any, shown: str) -> None:
    assert show(value) == shown


def test_one_and_many() -> None:
    assert [counted(count, "queue") for count in (0, 1, 1234)] == ["0 queues", "1 queue", "1,234 queues"]


@given(st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()))
def test_no_cell_moves_a_cursor(value: Any) -> None:
    assert all(character.isprintable() for character in text(value))


def test_columns_of_a_wide_terminal_and_of_a_wish() -> None:
    assert [column.name for column in TABLE.chosen(Wish(), 80, ROWS)] == ["name", "ready"]
    assert [column.name for column in TABLE.chosen(Wish(), tables.WIDE, ROWS)] == ["name", "ready", "owner"]
    wish = Wish(columns=("owner", "messages.ready", "other"))
    assert TABLE.json(ROWS[:1], wish) == [{"owner": "a", "ready": 5, "other": 1}]


def test_a_heading_names_its_column_and_json_keeps_the_field() -> None:
    table = Table((Column("owner", heading="leader"),))
    wish = Wish(columns=("leader",))
    assert tables.lines(table, ROWS[:1], wish, 80) == ["leader", "a"]
    assert tables.lines_of(table, ROWS[0], Wish()) == ["leader  a"]
    assert table.json(ROWS[:1], wish) == table.json(ROWS[:1], Wish(columns=("owner",))) == [{"owner": "a"}]


def test_a_column_that_nothing_has_is_refused() -> None:
    for wish in (Wish(columns=("nmae",)), Wish(sort="nmae")):
        with pytest.raises(Failed) as failed:
            TABLE.json(TABLE.rows(ROWS, wish), wish)
        assert failed.value.code == USAGE
        assert "nmae" in failed.value.text
    assert TABLE.rows([], Wish(columns=("nmae",), sort="nmae")) == [], "nothing says that there is no such field"


def test_sorted_filtered_cut() -> None:
    def names(**wish: Any) -> list[str]:
        return [row["name"] for row in TABLE.rows(ROWS, Wish(**wish))]

    assert names(sort="ready") == ["idle", "Orders", "mails"]
    assert names(sort="-ready") == ["mails", "Orders", "idle"]
    assert names(sort="-ready", limit=1) == ["mails"]
    assert names(filter="ORD") == ["Orders"]
    assert names(filter="*s") == ["Orders", "mails"]
    assert names(filter="i?le") == ["idle"]
    assert names(filter="none") == []


@given(
    st.lists(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.text()))
)
def test_any_values_can_be_sorted(values: list[Any]) -> None:
    rows = [{"name": value} for value in values]
    assert len(TABLE.rows(rows, Wish(sort="name"))) == len(values)


def test_a_filter_takes_brackets_as_they_are() -> None:
    assert fits("a[1]", "[1]")
    assert not fits("a1", "[1]")


def test_a_node_is_asked_for_what_is_shown_and_no_more() -> None:
    assert TABLE.query(Wish(), 80) == {"columns": "messages.ready,name"}
    assert TABLE.query(Wish(columns=("owner",), sort="-other", as_json=True), 80) == {"columns": "name,other,owner"}
    assert TABLE.query(Wish(as_json=True), 80) == {}, "programs get all of it"


def test_numbers_are_on_the_right_and_cells_stay_whole() -> None:
    rows = [*ROWS, {"name": "[red]x[/red]", "messages": {"ready": 7}}, {"name": "名" * 3}, {"name": "n" * 300}]
    lines = tables.lines(TABLE, rows, Wish(), 80)
    assert lines[0].split() == ["name", "ready"]
    assert {cell_len(line) for line in lines} == {300 + 2 + len("1,234,567")}
    assert lines[4].split() == ["[red]x[/red]", "7"]


def test_one_document_is_shown_with_what_it_has() -> None:
    assert tables.lines_of(TABLE, {"name": "q", "owner": "a"}, Wish()) == ["name   q", "owner  a"]
    assert tables.lines_of(TABLE, {"name": "q"}, Wish(columns=("ready",))) == ["ready  -"]


def test_a_picture_is_as_high_as_its_terminal() -> None:
    lines = tables.lines(TABLE, ROWS, Wish(), 80)
    drawn = tables.picture(lines, 2, head=True)
    assert isinstance(drawn, Text)
    assert drawn.plain.splitlines() == lines[:2]
    assert str(drawn.spans[0].style) == "bold"


def test_ten_thousand_rows_take_no_time() -> None:
    rows = [{"name": f"q{n}", "messages": {"ready": n}} for n in range(10_000)]
    began_s = time.process_time()
    assert len(tables.lines(TABLE, rows, Wish(sort="-ready"), 200)) == 10_001
    assert time.process_time() - began_s < 3


# -- --watch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "understood"),
    [
        (["--watch"], ["--watch=2"]),
        (["--watch", "5"], ["--watch", "5"]),
        (["--watch", "0.5", "x"], ["--watch", "0.5", "x"]),
        (["--watch", "--json"], ["--watch=2", "--json"]),
        (["--watch", "orders"], ["--watch=2", "orders"]),
        (["--watch=7"], ["--watch=7"]),
        (["--", "--watch"], ["--", "--watch"]),
    ],
)
def test_watch_may_stand_without_its_number(words: list[str], understood: list[str]) -> None:
    assert normalised(words) == understood


@given(st.lists(st.text().filter(lambda word: word != "--watch")))
def test_other_words_stay_as_they_are(words: list[str]) -> None:
    assert normalised(words) == words
