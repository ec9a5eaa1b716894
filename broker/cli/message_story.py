"""The story of a message: queues, replicas, consumer, deliveries and deaths (waits).

A broker has no list of messages by id. So the queues of a vhost are looked into, those with messages first, by the
management API's browsing, which disturbs nothing. What has left its last queue left no record, and so the answer may be
that nobody knows any more: it says how far was looked, and by what one would have known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from clusterbroker.broker.cli.exit_codes import NOT_ALLOWED, Failed
from clusterbroker.broker.cli.tables import Document, counted, number, size, text
from clusterbroker.broker.cli.target import Target
from clusterbroker.cluster.wiring.stream_settings import STREAM

EMPTY_MAX: Final = 200
"""So many queues are looked into though they had no message some seconds ago."""
COPIES_MAX: Final = 10
"""Of one message in one queue."""
COLUMNS: Final = "name,vhost,messages,owner,replicas,in_sync,online,durable,type"


@dataclass
class Search:
    """What was found, and what was looked at."""

    message_id: str
    vhost: str
    found: list[tuple[Document, Document]] = field(default_factory=list)
    """(queue, message)"""
    queues: int = 0
    looked_into: int = 0
    messages: int = 0
    barred: list[str] = field(default_factory=list)
    """Queues that the user may not read."""
    streams: list[str] = field(default_factory=list)
    """They are read by consumers alone."""
    complete: bool = True
    """False: time was over before all was seen."""

    def document(self) -> Document:
        """For programs."""
        return {
            "message_id": self.message_id,
            "vhost": self.vhost,
            "complete": self.complete,
            "queues": self.queues,
            "looked_into": self.looked_into,
            "messages_looked_at": self.messages,
            "not_allowed": self.barred,
            "streams": self.streams,
            "places": [{"queue": queue, "message": message} for queue, message in self.found],
        }


def searched(reach: Target, vhost: str, message_id: str, patience_s: float) -> Search:
    """Looks for the message in the queues of a vhost. Failed when the node cannot be asked."""
    result = Search(message_id, vhost)
    until_s = time.monotonic() + patience_s
    queues = reach.api.documents("/api/queues/{}", vhost, query={"columns": COLUMNS})
    result.queues = len(queues)
    result.streams = [queue["name"] for queue in queues if queue.get("type") == STREAM]
    queues = [queue for queue in queues if queue.get("type") != STREAM]
    filled = [queue for queue in queues if queue.get("messages")]
    empty = [queue for queue in queues if not queue.get("messages")]
    for queue in (*filled, *empty[:EMPTY_MAX]):
        if time.monotonic() >= until_s:
            result.complete = False
            break
        if queue.get("owner") is None:
            result.barred.append(f"{queue['name']} (no leader)")
            continue
        try:
            _look(reach, result, queue, until_s)
        except Failed as failed:
            if failed.code != NOT_ALLOWED:
                raise
            result.barred.append(queue["name"])
    result.complete = result.complete and len(empty) <= EMPTY_MAX
    return result


def _look(reach: Target, result: Search, queue: Document, until_s: float) -> None:
    counted = False
    query = {"filter": f"message_id={_quoted(result.message_id)}", "count": str(COPIES_MAX), "truncate": "200"}
    while True:
        answer = reach.api.get_or_none("/api/queues/{}/{}/messages", result.vhost, queue["name"], query=query)
        if answer is None:
            return  # it was deleted meanwhile
        if not counted:
            result.looked_into += 1
            counted = True
        result.messages += answer["looked_at"]
        result.found += [(queue, message) for message in answer["items"]]
        if answer["next"] is None or len(answer["items"]) >= COPIES_MAX:
            return
        if time.monotonic() >= until_s:
            result.complete = False
            return
        query |= {"from": str(answer["next"]), "to": query.get("to") or str(answer["last"])}


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def story(search: Search) -> Iterator[str]:
    """The lines."""
    name = f"message '{text(search.message_id)}'"
    for queue, message in search.found:
        yield from _place(name, queue, message)
        yield ""
    seen = (
        f"{number(search.looked_into)} of {counted(search.queues, 'queue')} of vhost '{text(search.vhost)}' "
        f"were looked into, {counted(search.messages, 'message')}"
    )
    if search.found:
        yield seen
    else:
        yield f"{name}: none of the queues that could be asked has it"
        yield f"  {seen}"
    if not search.complete:
        yield "  not all was seen: look again with more --patience"
    if search.barred:
        yield f"  not looked into, for want of a permission or a leader: {text(search.barred)}"
    if search.streams:
        yield f"  streams are not looked into, consume from them with x-stream-offset: {text(search.streams)}"
    if not search.found:
        yield "  it never came, or is not committed yet, or was acknowledged, expired, was dropped or deleted:"
        yield "  a message that has left its queues leaves no record. Spans and the firehose tell while it"
        yield "  happens: docs/observability.md"


def _place(name: str, queue: Document, message: Document) -> Iterator[str]:
    exchange = message["exchange"] or "(default)"
    yield f"{name} is in queue '{text(queue['name'])}', seq {number(message['seq'])}: {text(message['state'])}"
    yield (
        f"  it came {_when(message['timestamp_ms'])} from exchange '{text(exchange)}' with key "
        f"'{text(message['routing_key'])}', {size(message['payload_bytes'])}"
    )
    user = message["properties"].get("user_id")
    if user is not None:
        yield f"  published by user '{text(user)}', who was asked for it"
    yield from _safety(queue, message)
    yield from _deliveries(message)
    yield from _deaths(message)


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


def _safety(queue: Document, message: Document) -> Iterator[str]:
    """What is shown by browsing is committed: all copies in sync have it."""
    holders = queue["in_sync"]
    kept = message["properties"].get("delivery_mode") == 2 and queue["durable"]
    if len(queue["replicas"]) > 1:
        asked = "a publisher that asked for a confirm has it, or will"
        yield f"  it is committed: {text(holders)} hold it; {asked}"
        behind = [node for node in queue["replicas"] if node not in holders]
        if behind:
            yield f"  replicas that may lack it: {text(behind)}"
    elif kept:
        yield f"  only {text(queue['owner'])} holds it; a confirm follows once it is on disk"
    else:
        yield f"  only {text(queue['owner'])} holds it, in memory: a restart ends it"


def _deliveries(message: Document) -> Iterator[str]:
    if message["state"] == "unacknowledged":
        where = message["node"]
        yield f"  a consumer {f'at {text(where)} ' if where else ''}has it, and has not acknowledged it"
    elif message["state"] == "dead":
        yield "  it is on its way to the dead-letter exchange"
    count = message["delivery_count"]
    if count:
        yield f"  consumers failed at it {counted(count, 'time')} (delivery count)"
    elif message["redelivered"]:
        yield "  it may have been delivered before: it will be flagged as redelivered"
    elif message["state"] == "ready":
        yield "  not delivered yet"


def _deaths(message: Document) -> Iterator[str]:
    headers: dict[str, Any] = message["properties"].get("headers") or {}
    deaths = headers.get("x-death")
    for death in deaths if isinstance(deaths, list) else ():
        if isinstance(death, dict):
            first = death.get("time")
            since = f", first {_when(first * 1000)}" if isinstance(first, int) else ""
            yield (
                f"  it died {counted(death.get('count') or 1, 'time')} in queue '{text(death.get('queue'))}': "
                f"{text(death.get('reason'))}{since}"
            )
