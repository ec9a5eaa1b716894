"""Records what RabbitMQ's management API answers for a small set-up: `python -m tests.recorded.record`.

A private node on loopback (see bench.servers) gets vhosts, users, queues, bindings, policies, one connection with two
channels and two consumers, and some messages; then each request of GET, RIGHTS, REFUSED and DONE is asked and its
answer written to `management.json` beside this file; of what other users may see only the status, and how much it was.
Tests compare field names and types with it, so that no RabbitMQ is needed to run them. Names that differ from run to
run (ports, process ids, times) are left as they came.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import pika

from bench.servers import RabbitMqNode
from clusterbroker.broker.trial.nodes import free_port

ANSWERS = Path(__file__).with_name("management.json")
API_TRIES = 300
API_PAUSE_S = 0.1
TAGS = {"mon": "monitoring", "pol": "policymaker", "man": "management", "nobody": ""}

GET = """
/api/overview /api/cluster-name /api/nodes /api/nodes/NODE /api/extensions /api/whoami /api/auth
/api/connections /api/connections?page=1&page_size=5 /api/connections/CONNECTION /api/connections/CONNECTION/channels
/api/vhosts/%2F/connections /api/connections/username/guest
/api/channels /api/channels/CHANNEL /api/vhosts/%2F/channels /api/consumers /api/consumers/%2F
/api/exchanges /api/exchanges/%2F /api/exchanges/%2F/events /api/exchanges/%2F/amq.default
/api/exchanges/%2F/events/bindings/source /api/exchanges/%2F/events/bindings/destination
/api/queues /api/queues/%2F /api/queues/%2F/busy /api/queues/%2F/busy/bindings /api/queues/a%2Fb /api/queues/%2F/limited
/api/queues/%2F/busy?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5
/api/overview?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5
/api/queues?page=1&page_size=2 /api/queues?page=2&page_size=2 /api/queues?page=9&page_size=2 /api/queues?page=0
/api/queues?page=x /api/queues?page=1&page_size=501 /api/queues?page=1&page_size=2&name=l.*d&use_regex=true
/api/queues?page=1&name=us /api/queues?page=1&name=US /api/queues?page=1&name=*&use_regex=true
/api/queues?columns=name,messages,backing_queue_status.mode,message_stats.publish
/api/queues?sort=name&sort_reverse=true&columns=name /api/queues?sort=messages&columns=name,messages
/api/queues?sort=nonsense&columns=name /api/queues/%2F?page=1&page_size=2&columns=name&sort=name
/api/bindings /api/bindings/%2F /api/bindings/%2F/e/events/q/busy /api/bindings/%2F/e/events/q/busy/order.%23
/api/bindings/%2F/e/events/e/inner
/api/vhosts /api/vhosts/%2F /api/vhosts/a%2Fb /api/vhosts/%2F/permissions /api/vhosts/%2F/topic-permissions
/api/users /api/users/guest /api/users/without-permissions /api/users/guest/permissions
/api/users/guest/topic-permissions /api/permissions /api/permissions/%2F/guest /api/topic-permissions
/api/topic-permissions/%2F/guest
/api/parameters /api/parameters/shovel /api/parameters/shovel/%2F /api/global-parameters
/api/global-parameters/cluster_name /api/global-parameters/mine
/api/policies /api/policies/%2F /api/policies/%2F/limits /api/operator-policies /api/operator-policies/%2F/most
/api/vhost-limits /api/vhost-limits/%2F /api/user-limits /api/user-limits/mon
/api/feature-flags /api/auth/attempts/NODE /api/auth/attempts/NODE/source
/api/definitions /api/definitions/%2F /api/aliveness-test/%2F
/api/health/checks/alarms /api/health/checks/local-alarms /api/health/checks/virtual-hosts
/api/health/checks/certificate-expiration/1/weeks /api/health/checks/port-listener/1
/api/health/checks/port-listener/AMQP_PORT /api/health/checks/protocol-listener/amqp091
/api/health/checks/protocol-listener/mqtt /api/health/checks/node-is-mirror-sync-critical
/api/health/checks/node-is-quorum-critical /api/healthchecks/node
/api/queues/%2F/none /api/queues/none /api/queues/none/none /api/exchanges/%2F/none /api/nodes/none /api/users/none
/api/vhosts/none /api/policies/%2F/none /api/connections/none /api/channels/none /api/nothing
/api/bindings/%2F/e/events/q/busy/none /api/global-parameters/none /api/parameters/none/none/none
/api/permissions/%2F/none /api/queues/%2F/plain%2Fslash /api/queues/%2F/
"""

REFUSED = [
    ("PUT", "/api/overview", None),
    ("PUT", "/api/queues/%2F/new", "{"),
    ("PUT", "/api/queues/%2F/new", "[]"),
    ("PUT", "/api/queues/%2F/new", '{"durable": "perhaps"}'),
    ("PUT", "/api/queues/%2F/busy", '{"durable": false}'),
    ("PUT", "/api/queues/none/new", "{}"),
    ("DELETE", "/api/queues/%2F/none", None),
    ("PUT", "/api/exchanges/%2F/new", "{}"),
    ("PUT", "/api/exchanges/%2F/new", '{"type": "none"}'),
    ("PUT", "/api/exchanges/%2F/amq.new", '{"type": "direct"}'),
    ("DELETE", "/api/exchanges/%2F/amq.direct", None),
    ("POST", "/api/bindings/%2F/e/none/q/busy", "{}"),
    ("DELETE", "/api/bindings/%2F/e/events/q/busy/none", None),
    ("PUT", "/api/users/new", "{}"),
    ("PUT", "/api/users/new", '{"password": "x"}'),
    ("PUT", "/api/permissions/%2F/none", '{"configure": ".*", "write": ".*", "read": ".*"}'),
    ("PUT", "/api/permissions/%2F/guest", '{"configure": "(", "write": ".*", "read": ".*"}'),
    ("PUT", "/api/permissions/%2F/guest", '{"configure": ".*"}'),
    ("PUT", "/api/permissions/none/guest", '{"configure": ".*", "write": ".*", "read": ".*"}'),
    ("PUT", "/api/policies/%2F/bad", '{"pattern": "("}'),
    ("PUT", "/api/policies/%2F/bad", '{"pattern": "(", "definition": {"max-length": 1}}'),
    ("PUT", "/api/policies/%2F/bad", '{"pattern": "x", "definition": {"nonsense": 1}}'),
    ("PUT", "/api/policies/%2F/bad", '{"pattern": "x", "definition": {"max-length": "x"}}'),
    ("PUT", "/api/policies/%2F/bad", '{"pattern": "x", "definition": {}, "priority": "x"}'),
    ("PUT", "/api/policies/%2F/bad", '{"pattern": "x", "definition": {"max-length": 1}, "apply-to": "x"}'),
    ("DELETE", "/api/policies/%2F/none", None),
    ("DELETE", "/api/users/none", None),
    ("DELETE", "/api/vhosts/none", None),
    ("PUT", "/api/vhost-limits/%2F/nonsense", '{"value": 1}'),
    ("PUT", "/api/vhost-limits/%2F/max-queues", '{"value": "x"}'),
    ("PUT", "/api/global-parameters/mine", "{}"),
    ("POST", "/api/definitions", "{"),
    ("POST", "/api/definitions", '{"queues": [{"name": "x"}]}'),
    ("POST", "/api/definitions", '{"users": [{"name": "x"}]}'),
    ("POST", "/api/definitions", '{"exchanges": [{"vhost": "none", "name": "x", "type": "direct"}]}'),
]
DONE = [
    ("PUT", "/api/queues/%2F/made", '{"durable": true}'),
    ("PUT", "/api/queues/%2F/made", '{"durable": true}'),
    ("POST", "/api/bindings/%2F/e/events/q/made", '{"routing_key": "a b", "arguments": {"x": 1}}'),
    ("POST", "/api/bindings/%2F/e/events/q/made", '{"routing_key": "", "arguments": {}}'),
    ("GET", "/api/bindings/%2F/e/events/q/made", None),
    ("DELETE", "/api/queues/%2F/made", None),
    ("PUT", "/api/exchanges/%2F/made", '{"type": "direct"}'),
    ("PUT", "/api/exchanges/%2F/made", '{"type": "direct"}'),
    ("DELETE", "/api/exchanges/%2F/made", None),
    ("PUT", "/api/vhosts/made", None),
    ("PUT", "/api/vhosts/made", '{"description": "d", "tags": "a,b"}'),
    ("GET", "/api/vhosts/made", None),
    ("DELETE", "/api/vhosts/made", None),
    ("PUT", "/api/users/made", '{"password": "secret-pass", "tags": "monitoring,x"}'),
    ("PUT", "/api/users/made", '{"password_hash": "", "tags": ["management"]}'),
    ("DELETE", "/api/users/made", None),
    ("POST", "/api/users/bulk-delete", '{"users": ["x"]}'),
    ("PUT", "/api/policies/%2F/made", '{"pattern": "^x", "definition": {"max-length": 1}}'),
    ("PUT", "/api/policies/%2F/made", '{"pattern": "^x", "definition": {"max-length": 2}}'),
    ("DELETE", "/api/policies/%2F/made", None),
    ("PUT", "/api/user-limits/mon/max-channels", '{"value": 7}'),
    ("POST", "/api/exchanges/%2F/amq.default/publish",
     '{"properties": {}, "routing_key": "limited", "payload": "p", "payload_encoding": "string"}'),
    ("POST", "/api/exchanges/%2F/amq.default/publish",
     '{"properties": {}, "routing_key": "nowhere", "payload": "p", "payload_encoding": "string"}'),
    ("POST", "/api/exchanges/%2F/none/publish",
     '{"properties": {}, "routing_key": "nowhere", "payload": "p", "payload_encoding": "string"}'),
    ("POST", "/api/queues/%2F/limited/get", '{"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"}'),
    ("POST", "/api/queues/%2F/limited/get", '{"count": 2, "ackmode": "nonsense", "encoding": "auto"}'),
    ("POST", "/api/queues/%2F/limited/get", "{}"),
    ("DELETE", "/api/queues/%2F/limited/contents", None),
    ("POST", "/api/definitions", '{"queues": [{"vhost": "/", "name": "imported", "durable": true, "arguments": {}}]}'),
]  # fmt: skip
RIGHTS = """
/api/overview /api/nodes /api/connections /api/queues /api/queues/%2F /api/queues/a%2Fb /api/users /api/permissions
/api/policies /api/parameters /api/vhosts /api/vhosts/a%2Fb /api/definitions /api/whoami /api/exchanges/%2F
/api/vhost-limits /api/global-parameters /api/extensions /api/users/guest /api/operator-policies /api/feature-flags
/api/cluster-name /api/channels /api/consumers /api/bindings /api/aliveness-test/%2F /api/health/checks/alarms
/api/user-limits /api/topic-permissions /api/users/man/permissions /api/auth/attempts/NODE
"""


class ManagedRabbit(RabbitMqNode):
    """A private node with its management plugin, on loopback."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.http = free_port()

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        (self.directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (self.directory / "rabbitmq.conf").write_text(
            f"management.tcp.port = {self.http}\nmanagement.tcp.ip = 127.0.0.1\ncollect_statistics_interval = 1000\n"
        )
        return argv, environment

    def api(self) -> httpx.Client:
        """A client of its management API, as soon as that answers: it does so some time after AMQP. Raises
        httpx.TransportError."""
        api = httpx.Client(base_url=f"http://127.0.0.1:{self.http}", auth=("guest", "guest"), timeout=30, verify=False)
        for again in range(API_TRIES - 1, -1, -1):
            try:
                api.get("/api/overview")
                break
            except httpx.TransportError:
                if not again:
                    raise
                time.sleep(API_PAUSE_S)
        return api


def sampled(connection: pika.BlockingConnection) -> None:
    """Keeps the connection alive until what it has done was counted, several times."""
    for _ in range(24):
        connection.process_data_events(0.5)


def set_up(api: httpx.Client, amqp_port: int) -> pika.BlockingConnection:
    """All that the requests are asked about; the connection that stays open."""

    def put(path: str, body: Any, verb: str = "PUT") -> None:
        answer = api.request(verb, f"/api{path}", json=body)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"

    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    put("/vhosts/a%2Fb", {"description": "the other", "tags": "production,eu"})
    put("/permissions/a%2Fb/guest", everything)
    for user, tags in TAGS.items():
        put(f"/users/{user}", {"password": "secret-pass", "tags": tags})
        put(f"/permissions/%2F/{user}", everything)
    put("/users/lonely", {"password": "secret-pass", "tags": "management"})
    put("/topic-permissions/%2F/guest", {"exchange": "events", "write": ".*", "read": ".*"})
    put("/policies/%2F/limits", {
        "pattern": "^lim", "definition": {"max-length": 100}, "apply-to": "queues", "priority": 3})  # fmt: skip
    put("/operator-policies/%2F/most", {"pattern": "^lim", "definition": {"max-length": 50}})
    put("/global-parameters/mine", {"name": "mine", "value": {"x": [1, "two"]}})
    put("/vhost-limits/%2F/max-queues", {"value": 1000})
    put("/user-limits/mon/max-connections", {"value": 5})
    for vhost, queue, body in (
        ("%2F", "busy", {"durable": True}),
        ("%2F", "limited", {"durable": True, "arguments": {"x-max-priority": 5, "x-message-ttl": 60000}}),
        ("%2F", "plain%2Fslash", {"durable": False, "auto_delete": True}),
        ("%2F", "agreed", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
        ("a%2Fb", "there", {"durable": True}),
    ):
        put(f"/queues/{vhost}/{queue}", body)
    put("/exchanges/%2F/events", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}})
    put("/exchanges/%2F/inner", {"type": "fanout", "durable": True, "internal": True})
    put("/bindings/%2F/e/events/q/busy", {"routing_key": "order.#", "arguments": {}}, "POST")
    put("/bindings/%2F/e/events/q/limited", {"routing_key": "", "arguments": {"x": 1}}, "POST")
    put("/bindings/%2F/e/events/e/inner", {"routing_key": "all"}, "POST")

    parameters = pika.ConnectionParameters(
        "127.0.0.1", amqp_port, client_properties={"connection_name": "recorded"}, heartbeat=60
    )
    connection = pika.BlockingConnection(parameters)
    channel, other = connection.channel(), connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("busy", lambda *_: None, consumer_tag="slow", arguments={"x-priority": 3})
    other.basic_consume("plain/slash", lambda *_: None, consumer_tag="greedy", auto_ack=True, exclusive=True)
    for _ in range(5):
        properties = pika.BasicProperties(delivery_mode=2, timestamp=1_700_000_000)
        channel.basic_publish("events", "order.new", b"hello", properties)
        channel.basic_publish("", "limited", b"hello")
        channel.basic_publish("", "plain/slash", b"hello")
    channel.basic_get("limited", auto_ack=True)
    return connection


def main() -> int:
    """Records; the exit status."""
    with tempfile.TemporaryDirectory() as directory, ManagedRabbit(Path(directory) / "node") as node:
        node.start()
        api = node.api()
        connection = set_up(api, node.port)
        sampled(connection)
        name = api.get("/api/overview").json()["node"]
        there = api.get("/api/connections").json()[0]["name"].replace(" ", "%20").replace(">", "%3E")
        words = {
            "NODE": name, "CONNECTION": there, "CHANNEL": f"{there}%20(1)", "AMQP_PORT": str(node.port),
        }  # fmt: skip
        recorded: list[dict[str, Any]] = []

        def ask(verb: str, path: str, body: str | None = None, user: str = "guest", short: bool = False) -> None:
            filled = path
            for word, text in words.items():
                filled = filled.replace(word, text)
            password = "guest" if user == "guest" else "secret-pass"
            try:
                json_type = {"content-type": "application/json"} if body is not None else {}
                answer = api.request(verb, filled, content=body, auth=(user, password), headers=json_type)
            except httpx.RemoteProtocolError:
                print(f"no answer to {verb} {path}")
                return
            said: Any = answer.text
            try:
                said = answer.json() if answer.content else None
            except ValueError:
                pass
            if short and answer.is_success:
                said = len(said) if isinstance(said, list) else sorted(said)
            elif path.startswith("/api/nodes"):
                for entry in said if isinstance(said, list) else [said]:
                    if "applications" in (entry or {}):
                        del entry["applications"][1:]
            headers = {
                name: answer.headers[name]
                for name in ("content-type", "www-authenticate", "location", "allow", "vary", "cache-control")
                if name in answer.headers
            }
            entry = {"verb": verb, "path": path, "user": user, "status": answer.status_code, "headers": headers}
            recorded.append(entry | ({"sent": body} if body is not None else {}) | {"body": said})
            connection.process_data_events(0)

        for path in GET.split():
            ask("GET", path)
        for user in (*TAGS, "lonely"):
            for path in RIGHTS.split():
                ask("GET", path, user=user, short=True)
        for verb, path, body in (*REFUSED, *DONE):
            ask(verb, path, body)
        wrong = httpx.get(f"{api.base_url}/api/overview", auth=("guest", "wrong"))
        without = httpx.get(f"{api.base_url}/api/overview")
        for user, answer in (("wrong", wrong), ("", without)):
            recorded.append({"verb": "GET", "path": "/api/overview", "user": user, "status": answer.status_code,
                             "headers": {"www-authenticate": answer.headers.get("www-authenticate", "")},
                             "body": answer.text})  # fmt: skip
        connection.close()
        ANSWERS.write_text("[\n" + ",\n".join(json.dumps(entry, sort_keys=True) for entry in recorded) + "\n]\n")
        print(f"{len(recorded)} answers of RabbitMQ {node.version} in {ANSWERS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
