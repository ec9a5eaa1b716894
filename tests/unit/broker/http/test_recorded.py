"""Our answers beside those that RabbitMQ 3.10.8 gave for the same set-up (tests/recorded): the same statuses, and in
every document RabbitMQ's field names with values of the same kind. Fields without a meaning here are listed, with why.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import CONNECTION, NODE, NOW_MS, recorded_place

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "recorded" / "management.json").read_text(encoding="utf-8")
)
PAGE = Path(__file__).parents[4] / "docs" / "management-api.md"
WORDS = {
    "NODE": NODE,
    "CONNECTION": CONNECTION.replace(" ", "%20").replace(">", "%3E"),
    "CHANNEL": f"{CONNECTION} (1)".replace(" ", "%20").replace(">", "%3E"),
    "AMQP_PORT": "5672",
}
OF_ERLANG = {
    "garbage_collection", "reductions", "reductions_details", "erlang_version", "erlang_full_version", "proc_total",
    "proc_used", "proc_used_details", "gc_num", "gc_num_details", "gc_bytes_reclaimed", "gc_bytes_reclaimed_details",
    "context_switches", "context_switches_details", "run_queue", "net_ticktime", "ra_open_file_metrics",
    "metrics_gc_queue_length", "socket_opts", "cowboy_opts", "ssl_opts", "open_files",
    "pending_raft_commands", "release_series_support_status",
}  # fmt: skip
OF_ITS_STORE = {
    "backing_queue_status", "recoverable_slaves", "messages_ready_ram", "messages_unacknowledged_ram",
    "messages_dlx", "message_bytes_dlx", "single_active_consumer_ctag",
    *(f"{name}{tail}" for tail in ("", "_details") for name in (
        "io_read_avg_time", "io_read_bytes", "io_read_count", "io_reopen_count", "io_seek_avg_time", "io_seek_count",
        "mnesia_disk_tx_count", "mnesia_ram_tx_count", "msg_store_read_count", "msg_store_write_count",
        "queue_index_read_count", "queue_index_write_count",
    )),
    "io_sync_avg_time_details", "io_write_avg_time_details",
}  # fmt: skip
HAS_NO_MEANING = OF_ERLANG | OF_ITS_STORE
OTHER_STATUS = {
    "/api/aliveness-test/%2F": (503, "there is no node here: test_amqp_operations"),
    "/api/nodes/none": (404, "RabbitMQ fails with 500"),
}


def asked(user: str, verb: str = "GET") -> list[dict[str, Any]]:
    """What was asked of the set-up itself; what was made and deleted later ends with "made"."""
    found = [entry for entry in RECORDED if entry["user"] == user and entry["verb"] == verb and "sent" not in entry]
    return [entry for entry in found if not entry["path"].endswith("made")]


def filled(path: str) -> str:
    for word, text in WORDS.items():
        path = path.replace(word, text)
    return path


def differences(theirs: Any, ours: Any, where: str) -> list[str]:
    """Fields of theirs that ours lacks, and values of another kind."""
    match theirs:
        case _ if where.endswith(".value"):
            return []
        case dict() if where.endswith((".client_properties", ".cluster_state", ".arguments", ".definition")):
            return [] if isinstance(ours, dict) else [f"{where} is no object"]
        case dict():
            if not isinstance(ours, dict):
                return [f"{where} is {ours!r}, not an object"]
            found = []
            for name, value in theirs.items():
                if name in HAS_NO_MEANING:
                    continue
                if name not in ours:
                    found.append(f"{where}.{name} is missing")
                    continue
                found += differences(value, ours[name], f"{where}.{name}")
            return found
        case list():
            if not isinstance(ours, list):
                return [f"{where} is {ours!r}, not a list"]
            return [line for one, other in pairs(theirs, ours) for line in differences(one, other, f"{where}[]")]
        case None:
            return []
        case bool() | str():
            kinds: tuple[type, ...] = (type(theirs),)
        case _:
            kinds = (int, float)
    return [] if ours is None or type(ours) in kinds else [f"{where} is {ours!r}, not as {theirs!r}"]


def pairs(theirs: list[Any], ours: list[Any]) -> list[tuple[Any, Any]]:
    """Things of the same name; of what has no name, the first ones."""
    if theirs and isinstance(theirs[0], dict) and "name" in theirs[0]:
        named = {(entry.get("vhost"), entry["name"]): entry for entry in ours}
        keys = [(entry, (entry.get("vhost"), entry["name"])) for entry in theirs]
        return [(entry, named[key]) for entry, key in keys if key in named]
    return [(theirs[0], ours[0])] if theirs and ours else []


@pytest.fixture
def client() -> Client:
    place = recorded_place()
    place.tell(at_ms=NOW_MS + 1)  # nothing has changed since: all is idle, as it was there
    return Client(place)


async def test_documents_have_the_names_and_kinds_of_rabbitmq(client: Client) -> None:
    wrong: dict[str, Any] = {}
    for entry in asked("guest"):
        path, answer = entry["path"], await client.get(filled(entry["path"]))
        if path in OTHER_STATUS:
            if answer.status_code != OTHER_STATUS[path][0]:
                wrong[path] = answer.status_code
        elif answer.status_code != entry["status"]:
            wrong[path] = answer.text
        elif answer.status_code >= 400 and answer.status_code != 503:
            if answer.json() != entry["body"]:
                wrong[path] = answer.json()
        elif found := differences(entry["body"], answer.json(), ""):
            wrong[path] = found
    assert wrong == {}


async def test_fields_of_a_node_that_rabbitmq_does_not_have_are_on_the_page() -> None:
    place = recorded_place()
    name = NodeId(NODE)  # of a cluster, where more is known of it
    place.must(
        c.AddMember(name=name, address=""),
        c.RegisterNode(node=name, disk_id="d", incarnation=Incarnation(1), address=""),
    )
    [theirs] = [entry["body"] for entry in asked("guest") if entry["path"] == "/api/nodes/NODE"]
    ours = (await Client(place).get(filled("/api/nodes/NODE"))).json()
    [listed] = re.findall(r"^\* Nodes: (.*?)(?=^\* |\n\n)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(ours) - set(theirs)


@pytest.mark.parametrize("user", ["mon", "pol", "man", "nobody", "lonely"])
async def test_each_tag_sees_what_it_sees_at_rabbitmq(client: Client, user: str) -> None:
    for entry in asked(user):
        answer = await client.get(filled(entry["path"]), user)
        if entry["status"] == 200 and entry["path"] in OTHER_STATUS:
            assert answer.status_code == OTHER_STATUS[entry["path"]][0]
            continue
        assert answer.status_code == entry["status"], (user, entry["path"], answer.text)
        if entry["status"] == 401:
            assert answer.json() == entry["body"], (user, entry["path"])


@pytest.mark.parametrize(
    ("path", "users"),
    [
        ("/api/queues", {"guest": 5, "mon": 4, "man": 4, "lonely": 0}),
        ("/api/connections", {"guest": 1, "mon": 1, "man": 0, "lonely": 0}),
        ("/api/channels", {"guest": 2, "mon": 2, "pol": 0}),
        ("/api/consumers", {"guest": 2, "mon": 2, "man": 0}),
        ("/api/vhosts", {"guest": 2, "mon": 2, "man": 1, "lonely": 0}),
        ("/api/bindings", {"guest": 8, "man": 7, "lonely": 0}),
        ("/api/policies", {"guest": 1, "man": 1, "lonely": 0}),
    ],
)
async def test_lists_hold_what_the_user_may_see(client: Client, path: str, users: dict[str, int]) -> None:
    for user, count in users.items():
        assert len((await client.get(path, user)).json()) == count, user
