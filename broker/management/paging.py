"""Lists as RabbitMQ's API gives them: filtered, sorted, cut into pages, reduced to columns.

A listing has items and, for each, its name, its value for a sort, and its document. Of 10,000 queues a page shows 100,
so documents are made of these alone; names and sort values are read off rows. Only a sort by a field that the listing
has no quick value for looks into the documents of all.

    page, page_size          answer {"items", "page", "page_size", "page_count", "item_count", "filtered_count",
                             "total_count"}; page_size 1 to 500, 100 unless told
    name, use_regex          names that contain the text, in any case; with use_regex=true: that RE2 finds
    sort, sort_reverse       by a dotted path; numbers before truth values before texts, what lacks it counts as 0.
                             Equal ones stay in the listing's own order, which is by vhost and name
    columns                  only these fields, dotted paths for inner ones
    cursor, limit            our own: answer {"items", "next"}; `next` is the cursor of what follows, null at the end.
                             The order is the listing's own; what is declared or deleted meanwhile moves nothing

Without page and cursor a plain list comes back, filtered and sorted all the same.
"""

from __future__ import annotations

import base64
import binascii
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from clusterbroker.cluster.wiring.patterns import PatternError, compiled

from .errors import Refused, bad_request

T = TypeVar("T")
Document = dict[str, Any]

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 500
COLUMNS_MAX: Final = 200
NUMBER_MAX: Final = 10**15
_TRUE: Final = ("true", "1")


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """What a list is made of. `items` are in ascending order of `place`."""

    items: Sequence[T]
    name: Callable[[T], str]
    """What `name=` looks at."""
    place: Callable[[T], tuple[str, ...]]
    """Where an item stands in the listing's own order; unique."""
    document: Callable[[T], Document]
    quick: Callable[[str], Callable[[T], Any] | None] = lambda _path: None
    """How to read the value of a dotted path without the document, None being what the document lacks; None: no way."""


def of_documents(documents: Sequence[Document]) -> Listing[Document]:
    """A short list whose documents are made already. It has no cursor."""

    def place(_document: Document) -> tuple[str, ...]:
        raise bad_request("this list has no cursor: use page and page_size")

    return Listing(documents, name=lambda entry: str(entry.get("name", "")), place=place, document=lambda entry: entry)


def newest_first(number: int) -> tuple[str]:
    """Place of an entry in a list of entries whose numbers rise, 0 to NUMBER_MAX."""
    return (f"{NUMBER_MAX - number:0{len(str(NUMBER_MAX))}}",)


class Wish(msgspec.Struct, frozen=True):
    """What a query asks of a list."""

    page: int | None = None
    page_size: int = PAGE_SIZE_DEFAULT
    name: str = ""
    use_regex: bool = False
    sort: str = ""
    reverse: bool = False
    columns: tuple[tuple[str, ...], ...] = ()
    cursor: str | None = None


def wish(query: Mapping[str, str]) -> Wish:
    """What the query says; Refused (400) as RabbitMQ would."""
    columns = tuple(tuple(path.split(".")) for path in query.get("columns", "").split(",") if path)
    if len(columns) > COLUMNS_MAX:
        raise bad_request(f"more than {COLUMNS_MAX} columns")
    wanted = Wish(
        name=query.get("name", ""),
        use_regex=query.get("use_regex", "").lower() in _TRUE,
        sort=query.get("sort", ""),
        reverse=query.get("sort_reverse", "").lower() in _TRUE,
        columns=columns,
    )
    if "cursor" in query:
        size = _number(query.get("limit"), PAGE_SIZE_DEFAULT)
        if not 1 <= size <= PAGE_SIZE_MAX:
            raise bad_request(f"limit is from 1 to {PAGE_SIZE_MAX}")
        if wanted.sort:
            raise bad_request("a cursor follows the list's own order: leave sort out")
        return msgspec.structs.replace(wanted, cursor=query["cursor"], page_size=size)
    if "page" not in query:
        return wanted
    page, size = _number(query["page"], 1), _number(query.get("page_size"), PAGE_SIZE_DEFAULT)
    if page < 1 or not 1 <= size <= PAGE_SIZE_MAX:
        told = size if "page_size" in query else "undefined"
        raise Refused(
            400,
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {page}, page size {told}",
        )
    return msgspec.structs.replace(wanted, page=page, page_size=size)


def _number(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.lstrip("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:
        raise bad_request("Pagination parameters are invalid")
    return int(text)


def answer(listing: Listing[T], wanted: Wish) -> Document | list[Document]:
    """The page, or the whole list."""
    total = len(listing.items)
    items = _filtered(listing, wanted)
    if wanted.cursor is not None:
        return _after(listing, items, wanted)
    if wanted.sort:
        items = _sorted(listing, items, wanted.sort)
    if wanted.reverse:
        items = list(reversed(items))
    if wanted.page is None:
        return _shown(listing, items, wanted.columns)
    start = (wanted.page - 1) * wanted.page_size
    if start >= max(len(items), 1):
        raise Refused(
            400,
            "page_out_of_range",
            f"Page out of range, page: {wanted.page} page size: {wanted.page_size}, len: {len(items)}",
        )
    shown = items[start : start + wanted.page_size]
    return {
        "filtered_count": len(items),
        "item_count": len(shown),
        "items": _shown(listing, shown, wanted.columns),
        "page": wanted.page,
        "page_count": max(1, -(-len(items) // wanted.page_size)),
        "page_size": wanted.page_size,
        "total_count": total,
    }


def _filtered(listing: Listing[T], wanted: Wish) -> Sequence[T]:
    if not wanted.name:
        return listing.items
    means = by_name(wanted)
    return [item for item in listing.items if means(listing.name(item))]


def by_name(wanted: Wish) -> Callable[[str], bool]:
    """Whether a name is meant. Refused (400) for what is no regular expression."""
    if not wanted.use_regex:
        text = wanted.name.casefold()
        return lambda name: text in name.casefold()
    try:
        pattern = compiled(f"(?i){wanted.name}")
    except PatternError:
        raise bad_request("Pagination parameters are invalid") from None
    return pattern.matches


def _sorted(listing: Listing[T], items: Sequence[T], path: str) -> Sequence[T]:
    value = listing.quick(path)
    if value is None:
        steps = tuple(path.split("."))
        return sorted(items, key=lambda item: rank(inner(listing.document(item), steps)))
    return sorted(items, key=lambda item: rank(value(item)))


def rank(value: Any) -> tuple[int, Any]:
    """What a sort compares: values of any kind, in one order."""
    if value is None:
        return (0, 0)
    if isinstance(value, bool):
        return (1, value)
    if isinstance(value, (int, float)):
        return (0, value)
    if isinstance(value, str):
        return (2, value)
    return (3, json.dumps(value, sort_keys=True, default=str))


def inner(document: Any, steps: tuple[str, ...]) -> Any:
    """The value at a dotted path; None where there is none."""
    for step in steps:
        if not isinstance(document, dict) or step not in document:
            return None
        document = document[step]
    return document


def reduced(document: Document, columns: tuple[tuple[str, ...], ...]) -> Document:
    """The document with these fields only, those that it has."""
    if not columns:
        return document
    kept: Document = {}
    for steps in columns:
        value: Any = document
        for step in steps:
            if not isinstance(value, dict) or step not in value:
                break
            value = value[step]
        else:
            _put(kept, steps, value)
    return kept


def _shown(listing: Listing[T], items: Sequence[T], columns: tuple[tuple[str, ...], ...]) -> list[Document]:
    """Documents, or of these the columns: without the documents when each column can be read so."""
    values = [(steps, listing.quick(".".join(steps))) for steps in columns]
    quick = [(steps, value) for steps, value in values if value is not None]
    if not columns or len(quick) < len(columns):
        return [reduced(listing.document(item), columns) for item in items]
    return [_picked(item, quick) for item in items]


def _picked(item: T, values: list[tuple[tuple[str, ...], Callable[[T], Any]]]) -> Document:
    picked: Document = {}
    for steps, value in values:
        found = value(item)
        if found is not None:
            _put(picked, steps, found)
    return picked


def _put(document: Document, steps: tuple[str, ...], value: Any) -> None:
    for step in steps[:-1]:
        below = document.get(step)
        if not isinstance(below, dict):
            below = document[step] = {}
        document = below
    document.setdefault(steps[-1], value)


def _after(listing: Listing[T], items: Sequence[T], wanted: Wish) -> Document:
    assert wanted.cursor is not None, "only a query with a cursor comes here"
    start = 0
    if wanted.cursor:
        start = bisect_right(items, _place(wanted.cursor), key=listing.place)
    shown = items[start : start + wanted.page_size]
    more = start + len(shown) < len(items)
    return {
        "items": _shown(listing, shown, wanted.columns),
        "next": cursor(listing.place(shown[-1])) if more else None,
    }


def cursor(place: tuple[str, ...]) -> str:
    """A place as opaque text."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _place(text: str) -> tuple[str, ...]:
    try:
        place = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        place = None
    if not isinstance(place, list) or not all(isinstance(part, str) for part in place):
        raise bad_request("the cursor is none of this list")
    return tuple(place)
