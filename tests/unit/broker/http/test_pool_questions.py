"""Requests and reasons of a worker pool over HTTP: what users may ask, and what comes of a queue that refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.http.operations import OrderError
from clusterbroker.broker.management.pool_reasons import NO_CONTROLLER
from clusterbroker.broker.server.audit import Audit, AuditOptions
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.stats.inspection import (
    DELETED,
    UNKNOWN_WHAT,
    Request,
    Result,
    Shown,
    decode_request,
    encode,
)
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import Place, everything, recorded_place, user

BASE = "/api/pools/%2F/core"
Answer = dict[str, Any] | OrderError


class Queues:
    """A client of a pool with the keys 1, 2 and 3; the node answers about their queues as a test says."""

    def __init__(self) -> None:
        place: Place = recorded_place()
        (applied,) = place.apply(c.DeclarePool(vhost="/", name="core", template="core"))
        self.pool = applied.result
        epoch = place.replica.map.queue_by_id(self.pool.orphans).epoch  # type: ignore[union-attr]
        place.must(c.RequireGroups(pool_id=self.pool.pool_id, epoch=epoch, keys=("1", "2", "3")))
        groups = {group.key: group.queue_id for group in place.replica.map.pools.groups(self.pool.pool_id)}
        self.keys = {queue_id: key for key, queue_id in groups.items()}
        self.answers: Callable[[Request, str], Answer | None] = lambda *_: None
        self.asked: list[Request] = []
        self.audited: list[dict[str, Any]] = []
        audit = Audit("a", AuditOptions(), NodeLog(lambda _level, _event, facts: self.audited.append(facts)))
        self.client = Client(place, audit=audit)
        self.client.operations.carry_out = self._carry_out  # type: ignore[method-assign]

    async def _carry_out(self, what: str, arguments: dict[str, Any]) -> Answer:
        assert what == "messages"
        request = decode_request(arguments["request"])
        self.asked.append(request)
        key = self.keys.get(request.queue_id, "")
        return self.answers(request, key) or {"result": encode(self._waiting(request, key))}

    @staticmethod
    def _waiting(request: Request, key: str) -> Result:
        """One request in each group's queue, nothing elsewhere."""
        if request.what == "delete":
            return Result("n1", request.queue_id, "", 0, 0, 1, done=len(request.seqs or ()))
        found = (Shown(1, "ready", "", False, 0, b"core", key.encode(), b"\0\0", b"", 0, 1),) if key else ()
        return Result("n1", request.queue_id, "", 1, 0, 1, shown=found)

    async def listed(self) -> tuple[list[str], list[str]]:
        answer = (await self.client.get(f"{BASE}/requests")).raise_for_status().json()
        return [one["key"] for one in answer["items"]], answer["not_looked_into"]


def refuses(at: str, text: str, what: str = "browse") -> Callable[[Request, str], Answer | None]:
    return lambda request, key: OrderError("refused", text) if (key, request.what) == (at, what) else None


@pytest.fixture
def queues() -> Queues:
    return Queues()


async def test_a_group_that_ends_meanwhile_has_no_requests(queues: Queues) -> None:
    queues.answers = refuses("2", DELETED)
    assert await queues.listed() == (["1", "3"], [])
    answer = (await queues.client.ask("DELETE", f"{BASE}/requests/7")).raise_for_status().json()
    assert (answer["cancelled"], answer["items"], answer["not_looked_into"]) == (2, [], [])


async def test_a_queue_that_refuses_is_named_and_the_others_are_told(queues: Queues) -> None:
    queues.answers = refuses("2", "the queue was declared anew")
    assert await queues.listed() == (["1", "3"], ["core-req-2"])
    queues.answers = refuses("2", "the queue was declared anew", "delete")
    answer = (await queues.client.ask("DELETE", f"{BASE}/requests/7")).raise_for_status().json()
    assert (answer["cancelled"], [one["key"] for one in answer["items"]]) == (2, ["2"])
    assert answer["not_looked_into"] == ["core-req-2"]


async def test_what_was_cancelled_is_audited_though_the_node_goes_away(queues: Queues) -> None:
    lost = OrderError(Unavailable.kind, "the node has ended")
    queues.answers = lambda request, _: lost if request.queue_id == queues.pool.dead else None
    assert (await queues.client.ask("DELETE", f"{BASE}/requests/7")).status_code == 503
    assert queues.audited[-1]["cancelled"] == 3


async def test_an_id_that_no_filter_takes_is_a_bad_request(queues: Queues) -> None:
    for path in (f"{BASE}/requests/{'7' * 5000}", f"{BASE}/requests?key={'7' * 5000}"):
        answer = await queues.client.get(path)
        assert (answer.status_code, answer.json()["reason"]) == (400, "a filter has 4096 characters at most")
    assert not queues.asked


# -- reasons ------------------------------------------------------------------------------------------------------


async def test_a_key_that_is_too_long_is_a_bad_request(queues: Queues) -> None:
    answer = await queues.client.get(f"{BASE}/reasons?key={'é' * 128}")
    assert (answer.status_code, answer.json()["reason"]) == (400, "a key has at most 255 bytes")
    assert (await queues.client.get(f"{BASE}/reasons?key={'e' * 255}")).status_code == 200


async def test_only_a_controller_of_an_earlier_release_is_taken_for_silent(queues: Queues) -> None:
    with pytest.raises(ValueError, match=UNKNOWN_WHAT) as unknown:
        decode_request(encode(["of a later release", 1]))
    for text, status in ((str(unknown.value), 200), ("it is a mistake", 400), (DELETED, 404)):
        queues.answers = lambda *_, text=text: OrderError("refused", text)  # type: ignore[misc]
        answer = await queues.client.get(f"{BASE}/reasons")
        assert answer.status_code == status, answer.text
        assert status != 200 or NO_CONTROLLER in answer.json()["why"]


async def test_places_are_asked_for_by_those_who_may_see_nodes_and_keys_by_those_who_may_read_them(
    queues: Queues,
) -> None:
    place = queues.client.place
    place.must(user("some", "management"), everything("some"), user("few", "management"))
    place.must(c.SetPermission(user="few", vhost="/", configure="", write="", read="^core-req-[23]$"))
    for name, places, keys in (("guest", True, None), ("some", False, None), ("few", False, ("2", "3"))):
        (await queues.client.get(f"{BASE}/reasons", user=name)).raise_for_status()
        assert (queues.asked[-1].places, queues.asked[-1].keys) == (places, keys), name
    (await queues.client.get(f"{BASE}/reasons?key=1", user="guest")).raise_for_status()
    assert queues.asked[-1].keys == ("1",)


# -- history ------------------------------------------------------------------------------------------------------

ENTRY = {
    "at_ms": 1_795_290_640_000, "event": "started", "worker": "w9-0", "place": "n1", "why": "", "detail": "",
    "exit_status": None, "peak_bytes": 0, "took_ms": None, "was_ready": None,
}  # fmt: skip


def remembers(*keys: str | None, why: str = "") -> Callable[[Request, str], Answer | None]:
    """Of a controller that tells of a start of each, whatever it is asked for; the newest first."""

    def told(request: Request, _: str) -> Answer:
        entries = [ENTRY | {"number": number, "key": key, "why": why} for number, key in enumerate(keys, 1)][::-1]
        explained = {"since_ms": 1_795_290_000_000, "entries": entries}
        return {"result": encode(Result("n1", request.queue_id, "", 0, 0, 0, explained=explained))}

    return told


async def test_a_history_is_a_list_as_all_lists_and_says_where_it_begins(queues: Queues) -> None:
    queues.answers = remembers("1", None, "3")
    found = (await queues.client.get(f"{BASE}/history")).raise_for_status().json()
    assert [(one["number"], one["event"], one.get("key")) for one in found] == [
        (3, "started", "3"), (2, "started", None), (1, "started", "1"), (0, "began", None),
    ]  # fmt: skip
    assert found[-1]["at_ms"] == 1_795_290_000_000
    assert {one["at"][:10] for one in found} == {"2026-11-21"}
    assert queues.asked[-1].what == "history"
    page = (await queues.client.get(f"{BASE}/history?page=2&page_size=2&columns=key")).raise_for_status().json()
    assert (page["items"], page["total_count"]) == ([{"key": "1"}, {}], 4)
    named = (await queues.client.get(f"{BASE}/history?name=3")).raise_for_status().json()
    assert [one["number"] for one in named] == [3]
    first = (await queues.client.get(f"{BASE}/history?cursor=&limit=3")).raise_for_status().json()
    second = (await queues.client.get(f"{BASE}/history?limit=3&cursor={first['next']}")).raise_for_status().json()
    assert ([one["number"] for one in second["items"]], second["next"]) == ([0], None)


async def test_who_may_not_read_a_key_does_not_hear_of_its_workers(queues: Queues) -> None:
    place = queues.client.place
    place.must(user("few", "management"))
    place.must(c.SetPermission(user="few", vhost="/", configure="", write="", read="^core-req-[23]$"))
    queues.answers = remembers("1", None, "3", why="room for '1'")
    found = (await queues.client.get(f"{BASE}/history", user="few")).raise_for_status().json()
    assert [(one["number"], one.get("why")) for one in found] == [(3, "room for another key"), (0, None)]
    assert queues.asked[-1].keys == ("2", "3")


async def test_without_a_controller_that_knows_the_question_there_is_no_history(queues: Queues) -> None:
    for text in (UNKNOWN_WHAT, ""):
        refused = OrderError("refused", text) if text else {"unavailable": "nobody leads it"}
        queues.answers = lambda *_, refused=refused: refused  # type: ignore[misc]
        answer = await queues.client.get(f"{BASE}/history")
        assert (answer.status_code, answer.json()["reason"]) == (503, NO_CONTROLLER)
    assert (await queues.client.get(f"{BASE}/history?page=0")).status_code == 400


# -- lists of requests --------------------------------------------------------------------------------------------


async def test_requests_are_listed_by_parts_of_keys_and_in_columns(queues: Queues) -> None:
    queues.client.place.must(
        c.RequireGroups(pool_id=queues.pool.pool_id, epoch=_epoch(queues), keys=("Ab", "abc")),
    )
    groups = queues.client.place.replica.map.pools.groups(queues.pool.pool_id)
    queues.keys = {group.queue_id: group.key for group in groups}
    queues.asked.clear()
    found = (await queues.client.get(f"{BASE}/requests?name=aB&columns=key,state")).raise_for_status().json()
    assert found["items"] == [{"state": "waiting", "key": "Ab"}, {"state": "waiting", "key": "abc"}]
    assert {queues.keys[one.queue_id] for one in queues.asked if one.queue_id in queues.keys} == {"Ab", "abc"}
    found = (await queues.client.get(f"{BASE}/requests?name=%5E.b%24&use_regex=true")).raise_for_status().json()
    assert [one["key"] for one in found["items"]] == ["Ab"]


async def test_a_key_that_is_not_meant_is_left_out_of_queues_of_all_keys(queues: Queues) -> None:
    def orphans(request: Request, _: str) -> Answer | None:
        if request.queue_id != queues.pool.orphans:
            return None
        shown = tuple(Shown(seq, "ready", "", False, 0, b"core", key, b"\0\0", b"", 0, 1)
                      for seq, key in ((1, b"x1"), (2, b"y2")))  # fmt: skip
        return {"result": encode(Result("n1", request.queue_id, "", 2, 0, 2, shown=shown))}

    queues.answers = orphans
    found = (await queues.client.get(f"{BASE}/requests?name=Y&state=orphan")).raise_for_status().json()
    assert [(one["key"], one["state"]) for one in found["items"]] == [("y2", "orphan")]


@pytest.mark.parametrize("query", ["page=1", "sort=key", "page_size=5&page=2", "sort_reverse=true"])
async def test_requests_have_no_pages_and_no_sort(queues: Queues, query: str) -> None:
    answer = await queues.client.get(f"{BASE}/requests?{query}")
    assert answer.status_code == 400
    assert "use limit and cursor" in answer.json()["reason"]
    assert not queues.asked


def _epoch(queues: Queues) -> Any:
    queue = queues.client.place.replica.map.queue_by_id(queues.pool.orphans)
    assert queue is not None
    return queue.epoch
