"""Pages, against a model that makes all documents and works on them alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.paging import Listing, answer, inner, of_documents, reduced, wish

Item = tuple[str, str, int | None]
Paths = tuple[tuple[str, ...], ...]
NAMES = st.text("abAB.*-ß", min_size=1, max_size=4)
ITEMS = st.lists(
    st.tuples(st.sampled_from(("/", "v")), NAMES, st.none() | st.integers(-3, 3)),
    max_size=30,
    unique_by=lambda item: item[:2],
).map(lambda items: sorted(items, key=lambda item: item[:2]))


def document(item: Item) -> dict[str, Any]:
    vhost, name, depth = item
    made: dict[str, Any] = {"vhost": vhost, "name": name, "stats": {"odd": bool((depth or 0) % 2)}}
    return made if depth is None else made | {"depth": depth, "deep": {"er": {"x": depth, "y": name}}}


def listing(items: list[Item], made: list[Item] | None = None) -> Listing[Item]:
    def counted(item: Item) -> dict[str, Any]:
        if made is not None:
            made.append(item)
        return document(item)

    quick = {"name": lambda item: item[1], "depth": lambda item: item[2]}
    return Listing(items, lambda item: item[1], lambda item: item[:2], counted, quick.get)


def model(items: list[Item], query: dict[str, str]) -> Any:
    """RabbitMQ's way, as its answers show it."""
    documents = [document(item) for item in items]
    name = query.get("name", "")
    if query.get("use_regex") == "true":
        documents = [one for one in documents if re.search(name, one["name"], re.IGNORECASE)]
    else:
        documents = [one for one in documents if name.casefold() in one["name"].casefold()]
    if sort := query.get("sort"):

        def key(one: dict[str, Any]) -> tuple[int, Any]:
            value: Any = one
            for step in sort.split("."):
                value = value.get(step) if isinstance(value, dict) else None
            if isinstance(value, bool):
                return (1, value)
            if isinstance(value, str):
                return (2, value)
            return (3, json.dumps(value, sort_keys=True)) if isinstance(value, dict) else (0, value or 0)

        documents.sort(key=key)
    if query.get("sort_reverse") == "true":
        documents = documents[::-1]
    if "page" not in query:
        return documents
    page, size = int(query["page"]), int(query.get("page_size", "100"))
    shown = documents[(page - 1) * size : page * size]
    if page > 1 and not shown:
        return "page_out_of_range"
    return {
        "filtered_count": len(documents),
        "item_count": len(shown),
        "items": shown,
        "page": page,
        "page_count": max(1, (len(documents) + size - 1) // size),
        "page_size": size,
        "total_count": len(items),
    }


QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text("abAB", max_size=2),
        "use_regex": st.sampled_from(("true", "false")),
        "sort": st.sampled_from(("name", "depth", "vhost", "deep.er.x", "deep.er.y", "deep", "stats.odd", "none.x")),
        "sort_reverse": st.sampled_from(("true", "false")),
        "page": st.integers(1, 4).map(str),
        "page_size": st.integers(1, 20).map(str),
    },
)


@given(ITEMS, QUERIES)
def test_a_list_is_the_models(items: list[Item], query: dict[str, str]) -> None:
    wanted = model(items, query)
    try:
        found = answer(listing(items), wish(query))
    except Refused as refused:
        found = refused.error
    assert found == wanted


def test_columns_that_can_be_read_quickly_need_no_document() -> None:
    items: list[Item] = [("/", "a", 1), ("/", "b", None)]
    made: list[Item] = []
    found = answer(listing(items, made), wish({"columns": "depth,name"}))
    assert found == [{"depth": 1, "name": "a"}, {"name": "b"}]
    assert made == []


@given(ITEMS, st.integers(1, 7), st.text("ab", max_size=1))
def test_cursors_lead_through_all_of_it_once(items: list[Item], size: int, name: str) -> None:
    seen, cursor = [], ""
    for _ in range(len(items) + 2):
        query = {"cursor": cursor, "limit": str(size), "name": name}
        page: Any = answer(listing(items), wish(query))
        assert len(page["items"]) <= size
        seen += page["items"]
        if page["next"] is None:
            break
        cursor = page["next"]
    assert seen == model(items, {"name": name})


def test_a_cursor_goes_on_after_what_was_deleted_meanwhile() -> None:
    items: list[Item] = [("/", name, 0) for name in "abcdef"]
    first: Any = answer(listing(items), wish({"cursor": "", "limit": "3"}))
    left = [item for item in items if item[1] not in "bc"]
    second: Any = answer(listing(left), wish({"cursor": first["next"], "limit": "3"}))
    assert [one["name"] for one in second["items"]] == ["d", "e", "f"]


def test_only_what_is_shown_is_made() -> None:
    items: list[Item] = [("/", f"q{number:05}", number % 7) for number in range(10_000)]
    for query in ({"page": "3", "page_size": "10"}, {"page": "1", "page_size": "10", "sort": "depth", "name": "q0"}):
        made: list[Item] = []
        answer(listing(items, made), wish(query))
        assert len(made) == 10
    made = []
    answer(listing(items, made), wish({"cursor": "", "limit": "10"}))
    assert len(made) == 10


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"page": "0"}, "invalid_pagination_parameters"),
        ({"page": "-1"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "501"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "0"}, "invalid_pagination_parameters"),
        ({"page": "x"}, "bad_request"),
        ({"page": "9" * 40}, "bad_request"),
        ({"page": "²"}, "bad_request"),
        ({"page": "2"}, "page_out_of_range"),
        ({"name": "(", "use_regex": "true"}, "bad_request"),
        ({"name": "a" * 2000, "use_regex": "true"}, "bad_request"),
        ({"cursor": "?"}, "bad_request"),
        ({"cursor": "e30"}, "bad_request"),
        ({"cursor": "é"}, "bad_request"),
        ({"cursor": "", "limit": "0"}, "bad_request"),
        ({"cursor": "", "sort": "name"}, "bad_request"),
        ({"columns": ",".join(f"c{number}" for number in range(300))}, "bad_request"),
    ],
)
def test_what_cannot_be_asked_is_refused(query: dict[str, str], error: str) -> None:
    with pytest.raises(Refused) as refused:
        answer(listing([("/", "a", 1)]), wish(query))
    assert (refused.value.status, refused.value.error) == (400, error)


def test_an_empty_list_has_a_first_page() -> None:
    assert answer(of_documents([]), wish({"page": "1"}))["page_count"] == 1  # type: ignore[call-overload]


def test_a_list_without_an_order_has_no_cursor() -> None:
    with pytest.raises(Refused, match="no cursor"):
        answer(of_documents([{"name": "a"}, {"name": "b"}]), wish({"cursor": "", "limit": "1"}))


DOCUMENTS = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=12,
).filter(lambda value: isinstance(value, dict))
PATHS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)


@given(DOCUMENTS, PATHS)
def test_columns_keep_what_they_name_and_nothing_else(value: dict[str, Any], paths: Paths) -> None:
    before = json.dumps(value)
    kept = reduced(value, paths)
    assert json.dumps(value) == before
    for path in paths:
        others = [other for other in paths if other != path]
        # a path above or below another one that was asked for says nothing of its own
        alone = not any(path[: len(other)] == other or other[: len(path)] == path for other in others)
        if alone and inner(value, path) is not None:
            assert inner(kept, path) == inner(value, path)
    if paths:
        assert set(kept) <= {path[0] for path in paths}
