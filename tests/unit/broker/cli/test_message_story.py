"""The story of a message, from what browsing answers (docs/management-api.md, "Messages in a queue")."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.cli.exit_codes import NOT_ALLOWED, Failed
from clusterbroker.broker.cli.message_story import Search, searched, story


def queue(name: str, messages: int = 1, **facts: Any) -> dict[str, Any]:
    return {
        "name": name, "vhost": "/", "messages": messages, "owner": "a", "replicas": ["a", "b", "c"],
        "in_sync": ["a", "b"], "online": ["a", "b"], "durable": True, "type": "quorum", **facts,
    }  # fmt: skip


def message(seq: int = 7, **facts: Any) -> dict[str, Any]:
    return {
        "seq": seq, "state": "ready", "node": None, "redelivered": False, "delivery_count": 0, "exchange": "x",
        "routing_key": "k", "properties": {"message_id": "m", "delivery_mode": 2, "user_id": "alice"},
        "payload": "hello", "payload_bytes": 5, "payload_encoding": "string", "truncated": False,
        "timestamp_ms": 1_760_000_000_000, **facts,
    }  # fmt: skip


class Api:
    """A node with these queues; a list of messages for each, or what refuses."""

    def __init__(self, queues: list[dict[str, Any]], contents: dict[str, Any]) -> None:
        self.queues = queues
        self.contents = contents
        self.asked: list[tuple[str, dict[str, str]]] = []

    def documents(self, _path: str, *_names: str, query: dict[str, str]) -> list[dict[str, Any]]:
        columns = set(query["columns"].split(","))
        return [{name: value for name, value in entry.items() if name in columns} for entry in self.queues]

    def get_or_none(self, _path: str, _vhost: str, name: str, query: dict[str, str]) -> Any:
        self.asked.append((name, dict(query)))
        content = self.contents.get(name, [])
        if isinstance(content, Failed):
            raise content
        if content is None:
            return None
        start = int(query.get("from", "1"))
        here = content[start - 1 : start]
        following = start + 1 if start < len(content) else None
        return {
            "items": [one for one in here if one is not None], "looked_at": 100, "next": following,
            "last": len(content), "queue_id": 1, "life": "1.0", "owner": "a",
        }  # fmt: skip


def looked(queues: list[dict[str, Any]], contents: dict[str, Any], message_id: str = "m") -> tuple[Search, Api]:
    api = Api(queues, contents)
    reach: Any = SimpleNamespace(api=api)
    return searched(reach, "/", message_id, 60.0), api


def told(queues: list[dict[str, Any]], contents: dict[str, Any]) -> str:
    return "\n".join(story(looked(queues, contents)[0]))


def test_where_it_is_who_holds_it_and_what_befell_it() -> None:
    deaths = [{"queue": "old", "reason": "expired", "count": 2, "time": 1_750_000_000}]
    headers = {"x-death": [*deaths, "made up by a client"]}
    found = message(delivery_count=3, redelivered=True, properties={"message_id": "m", "headers": headers})
    said = told([queue("q")], {"q": [found]})
    assert "message 'm' is in queue 'q', seq 7: ready" in said
    assert "from exchange 'x' with key 'k', 5 B" in said
    assert "it is committed: a, b hold it" in said
    assert "replicas that may lack it: c" in said
    assert "consumers failed at it 3 times" in said
    assert "it died 2 times in queue 'old': expired, first 2025-06-15" in said
    assert "1 of 1 queue of vhost '/' were looked into, 100 messages" in said


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"state": "unacknowledged", "node": "b"}, "a consumer at b has it, and has not acknowledged it"),
        ({"state": "unacknowledged", "node": None}, "a consumer has it"),
        ({"state": "dead"}, "on its way to the dead-letter exchange"),
        ({"redelivered": True}, "it may have been delivered before"),
        ({}, "not delivered yet"),
        ({}, "published by user 'alice'"),
    ],
)
def test_who_has_it(facts: dict[str, Any], said: str) -> None:
    assert said in told([queue("q")], {"q": [message(**facts)]})


def test_a_queue_without_copies() -> None:
    alone = queue("q", replicas=["a"], in_sync=["a"])
    assert "only a holds it; a confirm follows once it is on disk" in told([alone], {"q": [message()]})
    assert "in memory: a restart ends it" in told([{**alone, "durable": False}], {"q": [message()]})


def test_what_nobody_knows_any_more() -> None:
    said = told([queue("q", 0), queue("p")], {"p": [None, None]})
    assert "message 'm': none of the queues that could be asked has it" in said
    assert "2 of 2 queues of vhost '/' were looked into, 300 messages" in said
    assert "leaves no record" in said


def test_all_of_a_queue_is_looked_at_and_no_more_than_it_had() -> None:
    found, api = looked([queue("q")], {"q": [None, None, message(3)]})
    assert [entry["seq"] for _, entry in found.found] == [3]
    assert [(query.get("from"), query.get("to")) for _, query in api.asked] == [(None, None), ("2", "3"), ("3", "3")]


def test_a_stream_is_not_looked_into() -> None:
    found, api = looked([queue("s", type="stream"), queue("q")], {"q": [message()]})
    assert [name for name, _ in api.asked] == ["q"]
    assert "consume from them with x-stream-offset: s" in "\n".join(story(found))


def test_names_are_quoted_for_the_filter() -> None:
    _, api = looked([queue("q")], {}, 'a "b" \\ AND state=dead')
    assert api.asked[0][1]["filter"] == 'message_id="a \\"b\\" \\\\ AND state=dead"'


def test_what_may_not_be_read_or_is_gone_is_said() -> None:
    refused = Failed("access refused", NOT_ALLOWED)
    found, _ = looked([queue("q"), queue("p"), queue("r", owner=None)], {"q": refused, "p": None})
    assert (found.barred, found.looked_into) == (["q", "r (no leader)"], 0)
    assert "not looked into, for want of a permission or a leader: q, r" in "\n".join(story(found))
    with pytest.raises(Failed):
        looked([queue("q")], {"q": Failed("the node cannot be reached")})


def test_it_ends_when_patience_does() -> None:
    api = Api([queue(f"q{number}") for number in range(5)], {})
    reach: Any = SimpleNamespace(api=api)
    found = searched(reach, "/", "m", 0.0)
    assert not found.complete
    assert "look again with more --patience" in "\n".join(story(found))
    assert found.document()["complete"] is False
