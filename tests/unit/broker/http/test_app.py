"""Sign-in, paths, errors and headers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterbroker.broker.http.auth import basic, is_loopback
from clusterbroker.broker.management import delayed, messages, pool_history, pool_reasons, pool_requests
from clusterbroker.broker.management.amqp_operations import ACTS
from clusterbroker.broker.management.operations import OPERATIONS
from clusterbroker.broker.management.reads import READS
from clusterbroker.broker.management.writes import WRITES
from clusterbroker.broker.server.log import BURST
from clusterbroker.cluster.wiring import commands as c
from tests.budget import examples
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import NODE, NOW_MS, everything, queue, recorded_place


@pytest.fixture
def client() -> Client:
    return Client(recorded_place())


async def test_without_a_login_the_client_is_asked_for_one(client: Client) -> None:
    answer = await client.http.get("/api/overview")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert answer.json() == {"error": "not_authorized", "reason": "Login failed"}


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody-at-all", "x"), ("guest", "")])
async def test_a_wrong_login_says_no_more_than_that(client: Client, user: str, password: str) -> None:
    answer = await client.http.get("/api/overview", auth=(user, password))
    assert (answer.status_code, answer.json()["reason"]) == (401, "Login failed")


async def test_too_many_wrong_logins_wait(client: Client) -> None:
    for number in range(10):
        assert (await client.ask("GET", "/api/whoami", "mon", password=f"wrong{number}")).status_code == 401
    answer = await client.get("/api/whoami", "mon")
    assert (answer.status_code, answer.json()["reason"]) == (
        429,
        "too many failed logins: try again in 60 s",
    )
    assert (await client.get("/api/whoami", "man")).status_code == 200
    client.now_ms += 60_000
    assert (await client.get("/api/whoami", "mon")).status_code == 200


async def test_guest_comes_from_here_only() -> None:
    far = Client(recorded_place(), address="192.0.2.7")
    assert (await far.get("/api/whoami")).status_code == 401
    assert (await far.get("/api/whoami", "mon")).status_code == 200
    assert (await Client(recorded_place(), address="::1").get("/api/whoami")).status_code == 200


@pytest.mark.parametrize(
    ("header", "given"),
    [
        ("Basic YTpi", ("a", b"b")),
        ("basic YTpiOmM=", ("a", b"b:c")),
        ("Basic YTo=", ("a", b"")),
        ("Basic YQ==", None),
        ("Basic OmI=", None),
        ("Basic ***", None),
        ("Basic /zpi", None),
        ("Bearer YTpi", None),
        ("", None),
        ("Basic " + "A" * 20_000, None),
    ],
)
def test_basic(header: str, given: tuple[str, bytes] | None) -> None:
    assert basic(header) == given


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("10.0.0.1", "::", "", "localhost", "::ffff:10.0.0.1")))


async def test_names_of_any_kind_travel_in_paths(client: Client) -> None:
    names = ["a/b", "%2F", "%", "ä ö", "..", ".", "a?b#c", "+", "\u2028", "a\\b"]
    for name in names:
        client.place.must(queue(name, "a/b"))
    from urllib.parse import quote

    for name in names:
        encoded = quote(name, safe="").replace(".", "%2E")
        answer = await client.get(f"/api/queues/a%2Fb/{encoded}")
        assert answer.status_code == 200, name
        assert answer.json()["name"] == name


async def test_queues_of_one_leader(client: Client) -> None:
    every = (await client.get("/api/queues?columns=name,owner")).json()
    leaders = {queue["owner"] for queue in every}
    assert leaders, "there are queues"
    for leader in leaders:
        found = (await client.get(f"/api/queues?columns=name,owner&leader={leader}")).json()
        assert found == [queue for queue in every if queue["owner"] == leader]
    assert (await client.get("/api/queues?leader=nobody")).json() == []
    # of a node that was never in a cluster
    client.place.must(c.DeclareQueue(vhost="/", name="at home", durable=True))
    assert "at home" in {one["name"] for one in (await client.get(f"/api/queues?leader={NODE}")).json()}


async def test_bindings_are_found_by_the_key_that_their_list_gives(client: Client) -> None:
    for key in ("a b", "~", "x~y", "%", "ä/ö", "+"):
        client.place.must(c.Bind(vhost="/", source="amq.direct", destination="busy", routing_key=key))
    from urllib.parse import quote

    listed = (await client.get("/api/bindings/%2F/e/amq.direct/q/busy")).json()
    assert len(listed) == 6
    for binding in listed:
        for key in (binding["properties_key"], quote(binding["properties_key"], safe="")):
            answer = await client.get(f"/api/bindings/%2F/e/amq.direct/q/busy/{key}")
            assert answer.json() == binding


async def test_a_path_that_is_no_text_is_a_bad_request(client: Client) -> None:
    assert (await client.get("/api/queues/%FF/x")).status_code == 400


async def test_wrong_methods_say_which_are_right(client: Client) -> None:
    answer = await client.ask("PUT", "/api/overview")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    answer = await client.ask("POST", "/api/policies/%2F/p")
    assert answer.headers["allow"] == "DELETE, GET, HEAD, PUT"
    assert set(answer.json()) == {"error", "reason"}


async def test_head_is_get_without_a_body(client: Client) -> None:
    answer = await client.ask("HEAD", "/api/queues")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) == len((await client.get("/api/queues")).content)


async def test_headers_that_all_answers_have(client: Client) -> None:
    for path in ("/api/overview", "/api/none", "/api/nodes/none", "/api"):
        answer = await client.get(path)
        assert answer.headers["cache-control"] == "no-store", "they hold hashes (RabbitMQ: no-cache)"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "x-clusterbroker-stale" not in answer.headers


async def test_a_node_that_is_cut_off_says_so_and_fails_its_checks(client: Client) -> None:
    client.place.replica.lease(False, NOW_MS - 42_000)
    answer = await client.get("/api/queues")
    assert (answer.status_code, answer.headers["x-clusterbroker-stale"]) == (200, "42")
    for path in ("/api/health/checks/alarms", "/api/healthchecks/node", "/api/healthchecks/node/none"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
    answer = await client.get("/api/aliveness-test/%2F")
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")


async def test_columns_of_one_document(client: Client) -> None:
    answer = await client.get("/api/queues/%2F/busy?columns=name,messages_details.rate")
    assert answer.json() == {"name": "busy", "messages_details": {"rate": 1.0}}


async def test_what_goes_wrong_here_is_told_to_nobody_else(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clusterbroker.broker.management.queues.document", lambda *_: 1 / 0)
    answer = await client.get("/api/queues")
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    assert "ZeroDivision" not in answer.text
    logged = capsys.readouterr().out
    assert "ZeroDivision" in logged
    assert "Z3Vlc3Q6Z3Vlc3Q=" not in logged
    assert "authorization" not in logged


async def test_what_fails_again_and_again_is_not_told_each_time(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clusterbroker.broker.management.queues.document", lambda *_: 1 / 0)
    monkeypatch.setattr("clusterbroker.broker.server.log.PER_S", 0)
    for _ in range(BURST + 20):
        assert (await client.get("/api/queues")).status_code == 500
    assert capsys.readouterr().out.count("request failed") == BURST


async def test_who_goes_away_in_a_body_is_no_failure_of_ours(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    events = iter(({"type": "http.request", "body": b'{"na', "more_body": True}, {"type": "http.disconnect"}))
    answered: list[Any] = []

    async def receive() -> Any:
        return next(events)

    async def send(message: Any) -> None:
        answered.append(message)

    head = [(b"authorization", b"Basic Z3Vlc3Q6Z3Vlc3Q="), (b"content-type", b"application/json")]
    await client.http._transport.app(  # type: ignore[attr-defined]
        {
            "type": "http",
            "method": "PUT",
            "path": "/api/cluster-name",
            "query_string": b"",
            "headers": head,
            "client": ("127.0.0.1", 1),
        },
        receive,
        send,
    )
    assert answered[0]["status"] == 400
    assert not client.operations.ordered
    assert not capsys.readouterr().out


async def test_the_schema_has_every_path_and_the_page_lists_them(client: Client) -> None:
    schema = (await client.http.get("/api/openapi.json")).json()
    declared = {(method.upper(), path) for path, methods in schema["paths"].items() for method in methods}
    sessions = {("POST", "/api/login"), ("POST", "/api/logout")}
    metrics = {("GET", path) for path in ("/metrics", "/metrics/per-object", "/metrics/detailed")}
    tables = {("GET", read.path) for read in READS}
    questions = (
        *messages.QUESTIONS,
        *delayed.QUESTIONS,
        *pool_requests.SEARCHES,
        pool_reasons.REASONS,
        pool_history.HISTORY,
    )
    tables |= {(one.method, one.path) for one in (*WRITES, *ACTS, *OPERATIONS, *questions)}
    assert declared == tables | sessions | metrics
    page = await client.http.get("/api")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert all(read.path in page.text for read in READS)
    assert "http://" not in page.text
    assert "https://" not in page.text


async def test_lists_say_that_they_are_lists(client: Client) -> None:
    words = {
        "vhost": "%2F", "name": "busy", "user": "guest", "source": "events", "destination": "busy",
        "component": "policy", "port": "5672", "protocol": "amqp", "within": "1", "unit": "days",
        "properties_key": "order.%23", "container": "nobody", "key": "42", "id": "w1-0",
    }  # fmt: skip
    names = {"nodes": "n1", "attempts": "n1", "exchanges": "events", "policies": "limits", "global-parameters": "mine",
             "operator-policies": "most", "e": "inner"}  # fmt: skip
    for read in READS:
        kind = read.path.split("/")[3 if "/auth/" in read.path else 2]
        path = read.path.format(**words | {"name": names.get(kind, "busy")})
        answer = await client.get(f"{path}?page=1")
        if answer.status_code == 200:
            assert ("items" in answer.json()) == read.listed, path
        else:
            assert answer.status_code == 404 or 503 in read.statuses, (path, answer.text)


async def test_the_schema_says_what_a_queue_is_declared_with(client: Client) -> None:
    schema = (await client.http.get("/api/openapi.json")).json()
    operation = schema["paths"]["/api/queues/{vhost}/{name}"]["put"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    priority = body["properties"]["arguments"]["properties"]["x-max-priority"]
    assert priority.pop("description").startswith("The highest priority.")
    assert priority == {"type": "integer", "minimum": 1, "maximum": 255}
    assert {"201", "204", "default"} <= set(operation["responses"])
    page = schema["paths"]["/api/queues"]["get"]["parameters"]
    assert {each["name"]: each["schema"].get("maximum") for each in page}["page_size"] == 500


PARTS = st.sampled_from(
    ("api", "queues", "%2F", "busy", "exchanges", "events", "bindings", "e", "q", "users", "guest", "..", "%00", "%FF",
     "nodes", "n1", "connections", "a%2Fb", "policies", "definitions", "permissions", "x" * 300, "channels", "~")
)  # fmt: skip
QUERIES = st.dictionaries(
    st.sampled_from(
        ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns", "cursor", "limit", "lengths_age",
         "lengths_incr", "msg_rates_age", "msg_rates_incr")
    ),
    st.one_of(st.text(max_size=8), st.sampled_from(("1", "0", "true", "name", "messages", "60", "-1", "(", ".*"))),
    max_size=4,
)  # fmt: skip
BODIES = st.none() | st.dictionaries(
    st.sampled_from(("tags", "password", "pattern", "definition", "value", "name", "configure", "users", "queues")),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


PATHS = st.one_of(
    st.lists(PARTS, max_size=7).map(lambda parts: "/api/" + "/".join(parts)),
    st.sampled_from([entry.path for entry in (*READS, *WRITES, *ACTS, *OPERATIONS)]).map(
        lambda path: path.replace("{vhost}", "%2F").replace("{name}", "busy").replace("{user}", "man")
    ),
)


def test_nothing_that_is_sent_ends_in_a_mistake_of_ours() -> None:
    client = Client(recorded_place(), carry_out=False)
    statuses: set[int] = set()

    async def ask(method: str, path: str, query: Any, body: Any) -> None:
        headers = {"content-type": "application/json", "authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        answer = await client.http.request(method, path, params=query, json=body, headers=headers)
        statuses.add(answer.status_code)
        if method == "HEAD" and answer.status_code == 503:
            return  # it has no body that would say why
        if answer.status_code >= 500 and "AMQP connection" not in answer.text:  # there is no node here
            assert answer.json()["status"] == "failed", answer.text

    with asyncio.Runner() as runner:

        @settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
        @given(st.sampled_from(("GET", "GET", "PUT", "DELETE", "POST", "HEAD")), PATHS, QUERIES, BODIES)
        @example("GET", "/api/overview", {}, None)
        @example("GET", "/api/queues", {"page": "-1"}, None)
        @example("GET", "/api/queues/%2F/nobody", {}, None)
        @example("DELETE", "/api/overview", {}, None)
        def check(method: str, path: str, query: Any, body: Any) -> None:
            runner.run(ask(method, path, query, body))

        check()
    assert {200, 400, 404, 405} <= statuses


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.long
def test_a_node_imports_nothing_of_http() -> None:
    code = (
        "import sys; from clusterbroker.broker import embedded; from clusterbroker.broker.cli import main, start\n"
        "from clusterbroker.broker.server import shell\nfrom clusterbroker.broker.server.member import cluster_shell\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('fastapi', 'starlette', 'uvicorn', 'prometheus_client')"
        " or m.startswith(('clusterbroker.broker.http', 'clusterbroker.broker.management'))])"
    )
    assert run(code) == "[]"


@pytest.mark.processes
@pytest.mark.parametrize("form", ["json", "console"])
def test_the_process_logs_no_local_variables(form: str) -> None:
    code = (
        "import structlog\n"
        "from clusterbroker.broker.http.main import speak\n"
        f"speak({form!r}, 'info', 'a')\n"
        "def check(password):\n"
        "    raise ValueError('wrong')\n"
        "try:\n"
        "    check('sec' + 'ret')\n"
        "except ValueError as error:\n"
        "    structlog.get_logger('management').error('failed', exc_info=error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ValueError" in done.stderr
    assert "secret" not in done.stderr
    assert form != "json" or json.loads(done.stderr)["node"] == "a"


@pytest.mark.long
def test_the_process_imports_nothing_of_a_nodes_work() -> None:
    code = (
        "import sys, clusterbroker.broker.http.app\n"
        "rooms = ('broker.node', 'broker.queues', 'broker.fronts', 'broker.access', "
        "'broker.routing', 'broker.remote', 'journal', 'replication')\n"
        "values = ('clusterbroker.journal', 'clusterbroker.journal.values')\n"
        "print([m for m in sys.modules if m.startswith(tuple(f'clusterbroker.{room}' for room in rooms))"
        " and m not in values])"
    )
    assert run(code) == "[]"


async def test_a_map_that_changes_while_a_password_is_checked(client: Client) -> None:
    client.place.must(everything("lonely"))
    asked = asyncio.ensure_future(client.get("/api/whoami", "lonely"))
    while not asked.done():
        await asyncio.sleep(0)
        if client.place.replica.map.user("lonely") is not None:
            client.place.must(c.DeleteUser(name="lonely"))
    assert (await asked).status_code == 401


async def test_what_memory_holds(client: Client) -> None:
    told = (await client.get("/api/nodes/n1/memory")).json()["memory"]
    assert told == {
        "queue_procs": 25_888, "quorum_queue_procs": 0, "stream_queue_procs": 0, "other_system": (163 << 20) - 25_888,
        "total": dict.fromkeys(("rss", "erlang", "allocated"), 163 << 20), "strategy": "rss",
    }  # fmt: skip
    shares = (await client.get("/api/nodes/n1/memory/relative")).json()["memory"]
    assert shares == {"total": 100, "queue_procs": 1, "quorum_queue_procs": 0, "stream_queue_procs": 0,
                      "other_system": 100}  # fmt: skip
    assert (await client.get("/api/nodes/none/memory")).status_code == 404
    assert (await client.get("/api/nodes/n1/memory", "man")).status_code == 401
    client.now_ms += 3_600_000
    assert (await client.get("/api/nodes/n1/memory")).json() == {"memory": "not_available"}


async def test_a_vhost_runs_wherever_a_node_does(client: Client) -> None:
    statuses = {
        path: (await client.ask("POST", f"/api/vhosts/{path}", body="")).status_code
        for path in ("a%2Fb/start/n1", "none/start/n1", "a%2Fb/start/none")
    }
    assert list(statuses.values()) == [204, 404, 400]
    assert (await client.ask("POST", "/api/vhosts/a%2Fb/start/n1", "mon", body="")).status_code == 401
    assert not client.operations.ordered


async def test_a_vhost_tells_what_its_user_may_do_there_at_all(client: Client) -> None:
    rights = {"configure": "^$", "write": "^a", "read": ""}
    client.place.must(c.SetPermission(user="man", vhost="/", **rights))
    assert {one["name"]: one["may"] for one in (await client.get("/api/vhosts", "man")).json()} == {"/": ["write"]}
    assert {one["name"]: one["may"] for one in (await client.get("/api/vhosts", "mon")).json()} == {
        "/": ["configure", "write", "read"], "a/b": [],
    }  # fmt: skip
