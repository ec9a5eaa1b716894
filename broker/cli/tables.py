"""Documents of the management API as tables for people and as JSON for programs (pure, but for the drawing).

A table has columns that are shown, and wide ones that a terminal of WIDE columns gets as well; `--columns` names any of
them, or any dotted path of a document. No cell is cut or folded: a line that is too long is broken by the terminal.
What a stranger may have named (queues, vhosts, clients) reaches the terminal through `readable.visible` alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.cli.exit_codes import USAGE, Failed
from clusterbroker.broker.cli.readable import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE: Final = 140
ABSENT: Final = "-"
Document = dict[str, Any]


# -- cells ------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """As it is; lists with commas, objects as JSON, nothing as a dash."""
    if value is None or value == "" or value == [] or value == {}:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(text, value))
    if isinstance(value, dict):
        return pattern(json.dumps(value, ensure_ascii=False))
    return visible(str(value))


def pattern(value: Any) -> str:
    """As text, with single backslashes: a regular expression, or JSON, can be taken from the terminal as it is."""
    if not isinstance(value, str):
        return text(value)
    return "".join(letter if letter.isprintable() else visible(letter) for letter in value) or ABSENT


def quoted(value: Any) -> str:
    """A name that may be empty: the default exchange is called so in paths."""
    return "(default)" if value == "" else text(value)


def number(value: Any) -> str:
    """1,234,567"""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else text(value)


def size(value: Any) -> str:
    """Bytes: 1.5 GiB"""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return text(value)
    amount, unit = _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    return f"{amount:.0f} {unit}" if unit == "B" or abs(amount) >= 100 else f"{amount:.1f} {unit}"


def rate(value: Any) -> str:
    """Per second: 12.3/s, 45.6k/s; nothing happening is a dash."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value == 0:
        return ABSENT
    amount, unit = _scaled(value, 1000, ("", "k", "M"))
    return f"{amount:.0f}{unit}/s" if abs(amount) >= 100 else f"{amount:.1f}{unit}/s"


def _scaled(value: float, step: int, units: Sequence[str]) -> tuple[float, str]:
    """The value in the largest unit in which it is at least 1."""
    place = 0
    while abs(value) >= step and place + 1 < len(units):
        value, place = value / step, place + 1
    return value, units[place]


def volume(value: Any) -> str:
    """Bytes per second: 1.5 KiB/s; nothing happening is a dash."""
    return rate(value) if not isinstance(value, (int, float)) or value == 0 else f"{size(value)}/s"


def pairs(value: Any) -> str:
    """An object as options say it: x-max-length=5, content_type=text/plain."""
    if not isinstance(value, dict):
        return text(value)
    return ", ".join(f"{text(name)}={pattern(inner) if inner != '' else ''}" for name, inner in value.items()) or ABSENT


def counted(count: int, noun: str) -> str:
    """1 queue, 1,234 queues"""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def moment(value: Any) -> str:
    """Milliseconds since 1970 as a time, in UTC."""
    if isinstance(value, bool) or not isinstance(value, int):
        return text(value)
    return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def span(value: Any) -> str:
    """Milliseconds as a length of time: 3d 4h, 5m 6s, 7 ms"""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return text(value)
    if value < 1000:
        return f"{value:.0f} ms"
    parts: list[str] = []
    left = int(value) // 1000
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= seconds or parts:
            parts.append(f"{left // seconds}{unit}")
            left %= seconds
    return " ".join(parts[:2])


RIGHT: Final = (number, size, rate, volume, span)
"""Numbers: their columns are aligned on the right."""


# -- columns ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One column: its name in `--columns` and JSON, its path in the document, and how its cells are shown."""

    name: str
    path: str = ""
    """Dotted; empty: the name."""
    show: Callable[[Any], str] = text
    wide: bool = False
    heading: str = ""
    """In tables for people, and in `--columns` as well; empty: the name."""

    @property
    def title(self) -> str:
        """What stands above the cells."""
        return visible((self.heading or self.name).replace("_", " "))

    @property
    def steps(self) -> tuple[str, ...]:
        """The path, taken apart."""
        return tuple((self.path or self.name).split("."))

    def value(self, document: Document) -> Any:
        """None where there is none."""
        return inner(document, self.steps)


def inner(document: Any, steps: Sequence[str]) -> Any:
    """The value at a path; None where there is none. A name with dots is found as it is."""
    if isinstance(document, Mapping) and (whole := ".".join(steps)) in document:
        return document[whole]
    for step in steps:
        if not isinstance(document, Mapping) or step not in document:
            return None
        document = document[step]
    return document


@dataclass(frozen=True)
class Wish:
    """What the user wants of a list."""

    columns: tuple[str, ...] = ()
    sort: str = ""
    """A column; with a minus in front the other way round."""
    filter: str = ""
    limit: int | None = None
    as_json: bool = False


@dataclass(frozen=True)
class Table:
    """What a list of one kind of documents looks like."""

    columns: tuple[Column, ...]
    name: str = "name"
    """The path that `--filter` looks at."""
    narrow: bool = False
    """There may be thousands: the node is asked for no more than is shown."""

    def chosen(self, wish: Wish, width: int, rows: Sequence[Document]) -> list[Column]:
        """The columns to show. Failed (USAGE) for one that no row has."""
        if not wish.columns:
            return [column for column in self.columns if not column.wide or width >= WIDE]
        return [self._named(name, rows) for name in wish.columns]

    def _named(self, name: str, rows: Sequence[Document]) -> Column:
        for column in self.columns:
            if name in (column.name, column.path, column.heading):
                return column
        column = Column(name)
        if rows and all(column.value(row) is None for row in rows):
            known = ", ".join(column.heading or column.name for column in self.columns)
            raise Failed(f"nothing here has a column '{name}': choose of {known}, or any field of --json", USAGE)
        return column

    def query(self, wish: Wish, width: int) -> dict[str, str]:
        """What to ask of the node: the fields that are shown, sorted by or filtered by; nothing: all fields."""
        if not self.narrow or (wish.as_json and not wish.columns):
            return {}
        paths = {".".join(column.steps) for column in self.chosen(wish, width, ())} | {self.name}
        if wish.sort:
            paths.add(".".join(self._named(wish.sort.removeprefix("-"), ()).steps))
        return {"columns": ",".join(sorted(paths))}

    def rows(self, documents: Sequence[Document], wish: Wish) -> list[Document]:
        """Filtered, sorted, cut. Failed (USAGE) for a column that no document has."""
        rows = list(documents)
        if wish.filter:
            steps = tuple(self.name.split("."))
            rows = [row for row in rows if fits(str(inner(row, steps) or ""), wish.filter)]
        if wish.sort:
            column = self._named(wish.sort.removeprefix("-"), documents)
            rows.sort(key=lambda row: rank(column.value(row)), reverse=wish.sort.startswith("-"))
        return rows if wish.limit is None else rows[: wish.limit]

    def json(self, rows: Sequence[Document], wish: Wish) -> list[Document]:
        """What programs get: the documents, or of each the columns that were asked for."""
        if not wish.columns:
            return list(rows)
        columns = [self._named(name, rows) for name in wish.columns]
        return [{column.name: column.value(row) for column in columns} for row in rows]


def fits(name: str, wanted: str) -> bool:
    """Whether a name contains a text, in any case; with * or ? in it the text is the pattern of the whole name."""
    name, wanted = name.casefold(), wanted.casefold()
    return fnmatchcase(name, wanted) if "*" in wanted or "?" in wanted else wanted in name


def rank(value: Any) -> tuple[int, Any]:
    """Values of any kind in one order: nothing, numbers, texts, all else."""
    if value is None:
        return (0, 0)
    if isinstance(value, (bool, int, float)):
        return (1, value)
    if isinstance(value, str):
        return (2, value)
    return (3, json.dumps(value, sort_keys=True, default=str))


# -- drawing ----------------------------------------------------------------------------------------------------


def lines(table: Table, rows: Sequence[Document], wish: Wish, width: int) -> list[str]:
    """The rows as lines, below one with the names of the columns."""
    columns = table.chosen(wish, width, rows)
    cells = [[column.title for column in columns]]
    cells += [[column.show(column.value(row)) for column in columns] for row in rows]
    return _aligned(cells, [column.show in RIGHT for column in columns])


def lines_of(table: Table, document: Document, wish: Wish) -> list[str]:
    """One document, a line for each column: wide ones too, and none that it lacks."""
    cells = []
    for column in table.chosen(wish, WIDE, [document]):
        value = column.value(document)
        if value is not None or wish.columns:
            cells.append([column.title, column.show(value)])
    return _aligned(cells, [False, False])


def _aligned(cells: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Cells under each other. A table of the library takes a minute for 10,000 rows."""
    from rich.cells import cell_len

    sizes = [[cell_len(cell) for cell in row] for row in cells]
    widths = [max(column, default=0) for column in zip(*sizes, strict=True)]
    found = []
    for row, size_of in zip(cells, sizes, strict=True):
        padded = [
            " " * (width - taken) + cell if is_right else cell + " " * (width - taken)
            for cell, taken, width, is_right in zip(row, size_of, widths, right, strict=True)
        ]
        found.append("  ".join(padded).rstrip())
    return found


def picture(shown: Sequence[str], height: int, head: bool) -> RenderableType:
    """So many lines as a terminal has room for, cut where it ends; `head`: the first one is that of the columns."""
    from rich.text import Text

    drawn = Text("\n".join(shown[:height]), no_wrap=True, overflow="ellipsis")
    if head and shown:
        drawn.stylize("bold", 0, len(shown[0]))
    return drawn


def printed(shown: Sequence[str], head: bool) -> None:
    """On standard output; no line is cut or folded."""
    import typer

    if head and shown:
        typer.echo(typer.style(shown[0], bold=True))
        shown = shown[1:]
    if shown:
        typer.echo("\n".join(shown))


def terminal_width() -> int:
    """Of the terminal; of a pipe 80."""
    import shutil

    return shutil.get_terminal_size().columns


def encoded(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value)
