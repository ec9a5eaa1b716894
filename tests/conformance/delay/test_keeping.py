"""What waits: routes, confirms, limits, keys, and operations on it (rules 79 to 81 and 84 to 88)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from ..channel import Channel
from ..conftest import Connect
from ..marks import rule
from ..target import Target
from ..wire import eventually
from .conftest import Delayed, Name, declare

HOUR_MS = 3_600_000
Api = Callable[..., Any]


@pytest.fixture
def confirmed(delayed: Delayed) -> Delayed:
    """With confirms: what a test does next comes after what it published."""
    delayed.channel.confirm_select()
    return delayed


def put(delayed: Delayed, body: bytes, **headers: Any) -> str:
    """Publishes; the confirm."""
    delayed.publish(body, **headers)
    delayed.published += 1
    return delayed.channel.confirms(delayed.published)[-1]


@pytest.fixture
def api(target: Target) -> Iterator[Api]:
    """`api(method, exchange, path, body)`: of what waits in the exchange."""
    with httpx.Client(base_url=target.http, auth=("guest", "guest"), timeout=60, verify=False) as client:

        def ask(method: str, exchange: str, path: str = "", body: object = None, status: int = 200) -> Any:
            place = f"/api/exchanges/%2F/{quote(exchange, safe='')}/delayed{path}"
            answer = client.request(method, place, json=body)
            while answer.status_code == 404 and status != 404:  # its replica of the wiring follows
                answer = client.request(method, place, json=body)
            assert answer.status_code == status, answer.text
            return answer.json()

        yield ask


@rule("79")
def test_bindings_made_after_publishing_count(confirmed: Delayed, name: Name) -> None:
    channel, other = confirmed.channel, name("other")
    assert put(confirmed, b"x", x_delay=300) == "ack"
    channel.queue_declare(other, durable=True)
    channel.queue_bind(other, confirmed.exchange, confirmed.key)
    channel.queue_delete(confirmed.queue)
    channel.consume(other, no_ack=True)
    assert channel.delivery().body == b"x"


@rule("80")
def test_mandatory_is_judged_by_the_routes_of_now(confirmed: Delayed) -> None:
    channel = confirmed.channel
    channel.basic_publish(confirmed.exchange, "nowhere", b"x", mandatory=True, headers={"x-delay": 60_000})
    returned = channel.returns()[0]
    assert (returned.reply_code, returned.body, returned.headers) == (312, b"x", {"x-delay": 60_000})
    assert channel.confirms(1) == ["ack"]


@rule("80")
def test_in_a_transaction_too(delayed: Delayed) -> None:
    channel = delayed.channel
    channel.tx_select()
    channel.basic_publish(delayed.exchange, "nowhere", b"x", mandatory=True, headers={"x-delay": 100})
    channel.basic_publish(delayed.exchange, delayed.key, b"y", mandatory=True, headers={"x-delay": 100})
    channel.tx_commit()
    assert channel.returns()[0].body == b"x"
    delayed.listen()
    assert delayed.comes().body == b"y"


@rule("80")
def test_what_has_no_route_when_due_goes_to_the_alternate_exchange(channel: Channel, name: Name) -> None:
    exchange, alternate, queue = name("later"), name("alternate"), name("q")
    channel.exchange_declare(alternate, "fanout", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, alternate)
    declare(channel, exchange, "direct", alternate_exchange=alternate)
    channel.basic_publish(exchange, "nowhere", b"x", headers={"x-delay": 50})
    channel.consume(queue, no_ack=True)
    assert channel.delivery().headers == {"x-delay": -50}


@rule("84")
def test_the_newest_of_a_key_replaces_the_one_that_waits(confirmed: Delayed) -> None:
    confirmed.listen()
    put(confirmed, b"old", x_delay=600, x_delay_key="k")
    put(confirmed, b"new", x_delay=700, x_delay_key="k")
    put(confirmed, b"other", x_delay=800, x_delay_key="l")
    assert confirmed.channel.bodies(2) == [b"new", b"other"]


@rule("84")
def test_a_key_is_free_when_its_message_has_gone(confirmed: Delayed) -> None:
    confirmed.listen()
    for body in (b"1", b"2"):
        put(confirmed, body, x_delay=50, x_delay_key="k")
        assert confirmed.comes().body == body


@rule("84")
@pytest.mark.parametrize("key", ["", "k" * 256, 7])
def test_a_key_is_a_short_text(delayed: Delayed, key: object) -> None:
    with delayed.channel.closes(406, "x-delay-key"):
        delayed.publish(b"x", x_delay=60_000, x_delay_key=key)


@rule("85")
def test_what_is_cancelled_never_comes(confirmed: Delayed, api: Api) -> None:
    confirmed.listen()
    put(confirmed, b"no", x_delay=HOUR_MS, x_delay_key="k")
    put(confirmed, b"yes", x_delay=HOUR_MS)
    assert api("POST", confirmed.exchange, "/delete", {"key": "k"})["deleted"] == 1
    assert api("POST", confirmed.exchange, "/delete", {"key": "k"})["deleted"] == 0
    assert api("POST", confirmed.exchange, "/send-now", {"filter": ""})["sent"] == 1
    assert confirmed.comes().body == b"yes"
    assert api("GET", confirmed.exchange)["items"] == []
    confirmed.channel.nothing_delivered()


@rule("85")
def test_what_waits_is_shown_by_due_time(confirmed: Delayed, api: Api) -> None:
    began = int(time.time() * 1000)
    for body, hours in ((b"3", 3), (b"1", 1), (b"2", 2)):
        put(confirmed, body, x_delay=hours * HOUR_MS)
    items = api("GET", confirmed.exchange)["items"]
    assert [item["payload"] for item in items] == ["1", "2", "3"]
    assert all(0 <= item["due_ms"] - began - n * HOUR_MS < 60_000 for n, item in enumerate(items, 1))
    some = api("GET", confirmed.exchange, f"?due_from={began + HOUR_MS + 60_000}&due_to={items[1]['due_ms']}")["items"]
    assert [item["payload"] for item in some] == ["2"]
    assert [one["payload"] for one in api("GET", confirmed.exchange, "?count=1")["items"]] == ["1"]
    assert [one["payload"] for one in api("GET", confirmed.exchange, "?filter=payload~3")["items"]] == ["3"]


@rule("85")
def test_send_now_is_at_once_and_another_time_is_that_time_only(confirmed: Delayed, api: Api) -> None:
    confirmed.listen()
    put(confirmed, b"now", x_delay=HOUR_MS, x_delay_key="now")
    put(confirmed, b"sooner", x_deliver_at=int(time.time() * 1000) + HOUR_MS, x_delay_key="sooner")
    put(confirmed, b"later", x_delay=HOUR_MS, x_delay_key="later")
    at = int(time.time() * 1000)
    later = {"key": "later", "deliver_at": at + 2 * HOUR_MS}
    assert api("POST", confirmed.exchange, "/reschedule", later)["rescheduled"] == 1
    assert api("POST", confirmed.exchange, "/send-now", {"key": "now"})["sent"] == 1
    assert confirmed.comes().body == b"now"
    sooner = {"key": "sooner", "deliver_at": at + 900}
    assert api("POST", confirmed.exchange, "/reschedule", sooner)["rescheduled"] == 1
    assert confirmed.comes().body == b"sooner"
    assert time.time() * 1000 >= at + 900
    confirmed.channel.nothing_delivered()
    assert [one["payload"] for one in api("GET", confirmed.exchange, "?key=later")["items"]] == ["later"]


@rule("85")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/delete", {}),
        ("/delete", {"key": "k", "filter": ""}),
        ("/reschedule", {"key": "k"}),
        ("/reschedule", {"key": "k", "deliver_at": "soon"}),
        ("/send-now", {"filter": "nonsense"}),
        ("/reschedule", {"key": "k", "deliver_at": 2**61}),
    ],
)
def test_a_request_that_says_too_little_is_refused(confirmed: Delayed, api: Api, path: str, body: object) -> None:
    api("POST", confirmed.exchange, path, body, status=400)


@rule("85")
def test_other_exchanges_have_nothing_that_waits(api: Api) -> None:
    api("GET", "amq.direct", status=404)


@rule("86")
def test_beyond_its_limit_publishes_are_nacked_and_what_waits_stays(channel: Channel, name: Name) -> None:
    exchange, queue = name("later"), name("q")
    declare(channel, exchange, "fanout", x_max_delayed=2)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange)
    channel.confirm_select()
    for body in (b"1", b"2", b"3"):
        channel.basic_publish(exchange, "", body, headers={"x-delay": 1200})
    assert sorted(channel.confirms(3)) == ["ack", "ack", "nack"]
    channel.basic_publish(exchange, "", b"at once")
    assert channel.confirms(4)[-1] == "ack"
    channel.consume(queue, no_ack=True)
    assert channel.bodies(3) == [b"at once", b"1", b"2"]


@rule("87")
def test_a_target_that_refuses_gets_it_later_others_at_once(channel: Channel, name: Name) -> None:
    exchange, full, free = name("later"), name("full"), name("free")
    declare(channel, exchange, "fanout")
    channel.queue_declare(full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.queue_declare(free, durable=True)
    for queue in (full, free):
        channel.queue_bind(queue, exchange)
    channel.confirm_select()
    channel.basic_publish("", full, b"first")
    channel.basic_publish(exchange, "", b"x", headers={"x-delay": 50})
    assert channel.confirms(2) == ["ack", "ack"]
    channel.consume(free, no_ack=True)
    assert channel.delivery().body == b"x"
    assert channel.basic_get(full, no_ack=True).body == b"first"
    eventually(lambda: channel.message_count(full) == 1)
    assert channel.basic_get(full, no_ack=True).body == b"x"
    channel.nothing_delivered()


@rule("88")
def test_what_waits_is_counted(confirmed: Delayed, target: Target) -> None:
    for body in (b"1", b"2"):
        put(confirmed, body, x_delay=HOUR_MS)
    place = f"exchanges/%2F/{confirmed.exchange}"
    eventually(lambda: target.api("GET", place).json().get("messages_delayed") == 2)


@rule("81")
def test_its_queue_is_closed_to_clients(confirmed: Delayed, connect: Connect) -> None:
    queue = f"amq.delay.{confirmed.exchange}"
    put(confirmed, b"x", x_delay=HOUR_MS)
    for method, arguments in (
        ("basic_consume", {"queue": queue}),
        ("queue_purge", {"queue": queue}),
        ("queue_delete", {"queue": queue}),
        ("queue_declare", {"queue": queue, "durable": True}),
        ("queue_bind", {"queue": queue, "exchange": "amq.fanout"}),
    ):
        channel = connect().channel()
        with channel.closes(403, "closed to clients"):
            getattr(channel, method)(**arguments)
    channel = confirmed.channel
    channel.basic_publish("", queue, b"y", mandatory=True)
    assert channel.returns()[0].reply_code == 312


@rule("85")
def test_who_may_use_some_topics_only_does_not_see_what_waits(channel: Channel, name: Name, target: Target) -> None:
    exchange, user, free = name("later"), name("user"), name("free")
    declare(channel, exchange, "topic")
    for one in (user, free):
        target.api("PUT", f"users/{one}", {"password": "secret", "tags": "management"})
        target.api("PUT", f"permissions/%2F/{one}", dict.fromkeys(("configure", "write", "read"), ".*"))
    limited = {"exchange": exchange, "write": "^mine", "read": "^mine"}
    target.api("PUT", f"topic-permissions/%2F/{user}", limited)
    for one, status in ((user, 401), (free, 200)):
        with httpx.Client(base_url=target.http, auth=(one, "secret"), timeout=60, verify=False) as client:
            place = f"/api/exchanges/%2F/{quote(exchange, safe='')}/delayed"
            eventually(lambda: client.get(place).status_code == status)  # noqa: B023 - called in this round
            assert client.post(place + "/delete", json={"filter": ""}).status_code == status
