"""What a node brings into the wiring at its start: definitions of a file, all or none, and once; then a first user."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_settings

from clusterbroker.broker.boot_definitions import BadDefinitions, BootDefinitions
from clusterbroker.broker.config import ConfigError, load
from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.cluster.passwords import verified
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.server.server_support import Lines

DOCUMENT: dict[str, Any] = {
    "users": [{"name": "app", "password": "secret", "tags": "administrator"}],
    "vhosts": [{"name": "shop"}],
    "permissions": [{"user": "app", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}],
    "exchanges": [{"vhost": "shop", "name": "orders", "type": "topic"}],
    "queues": [{"vhost": "shop", "name": f"q{number}"} for number in range(250)],
    "bindings": [{"vhost": "shop", "source": "orders", "destination": "q7", "routing_key": "a.#"}],
}


class Life:
    """A node in this loop, from its start to its end."""

    def __init__(self, directory: Path | None, definitions: BootDefinitions | None) -> None:
        self.lines = Lines()
        options = ServerOptions(
            data_dir=directory, amqp=(), control=False, password_cost=4, alarms=AlarmOptions(disk_free_bytes=0)
        )
        self.shell = NodeShell(replace(options, definitions=definitions), NodeLog(self.lines, "debug"))

    async def __aenter__(self) -> Life:
        await self.shell.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shell.stop()

    @property
    def map(self) -> Any:
        return self.shell.storage.wiring.map

    def told(self) -> list[tuple[str, dict[str, Any]]]:
        return [(event, facts) for _, event, facts in self.lines.lines if event.startswith("definitions.")]


def of(document: Any) -> BootDefinitions:
    return BootDefinitions.of(document, "definitions.json")


async def test_all_is_there_before_clients_are_and_a_second_start_changes_nothing(tmp_path: Path) -> None:
    async with Life(tmp_path, of(DOCUMENT)) as life:
        assert life.told() == [("definitions.imported", {"file": "definitions.json", "count": 255})]
        assert len(life.map.queues("shop")) == 250
        assert len(life.map.bindings("shop")) == 1
        user = life.map.user("app")
        assert verified("secret", user.password_hash, user.hash_algorithm)
        assert [user.name for user in life.map.users()] == ["app"], "a first user is for those who have none"
    async with Life(tmp_path, of(DOCUMENT)) as life:
        assert life.told() == [("definitions.known", {"file": "definitions.json", "count": 255})]
        assert life.map.user("app") == user


async def test_what_is_missing_comes_back_and_another_password_holds(tmp_path: Path) -> None:
    async with Life(tmp_path, of(DOCUMENT)) as life:
        await life.shell.propose(c.DeleteQueue(vhost="shop", name="q3", queue_id=life.map.queue("shop", "q3").queue_id))
    other = DOCUMENT | {"users": [{"name": "app", "password": "other", "tags": "administrator"}]}
    async with Life(tmp_path, of(other)) as life:
        assert life.map.queue("shop", "q3") is not None
        user = life.map.user("app")
        assert verified("other", user.password_hash, user.hash_algorithm)


async def test_a_contradiction_is_told_and_the_node_goes_on(tmp_path: Path) -> None:
    async with Life(tmp_path, of(DOCUMENT)):
        pass
    queues = [{"vhost": "shop", "name": "fresh"}, {"vhost": "shop", "name": "q3", "durable": False}]
    async with Life(tmp_path, of({"queues": queues})) as life:
        [(event, facts)] = life.told()
        assert event == "definitions.refused"
        assert facts["file"] == "definitions.json"
        assert "'q3'" in facts["why"]
        assert "\n" not in facts["why"]
        assert life.map.queue("shop", "fresh") is None, "all or none"
        assert life.shell.started


async def test_a_process_brings_them_once_however_often_its_node_begins_again(tmp_path: Path) -> None:
    definitions = of(DOCUMENT)
    async with Life(tmp_path, definitions) as life:
        await life.shell.propose(c.DeleteQueue(vhost="shop", name="q3", queue_id=life.map.queue("shop", "q3").queue_id))
    async with Life(tmp_path, definitions) as life:
        assert life.told() == []
        assert life.map.queue("shop", "q3") is None


POOLS: dict[str, Any] = {
    "vhosts": [{"name": "shop"}],
    "queues": [{"vhost": "shop", "name": "reports"}],
    "pools": [
        {
            "vhost": "shop",
            "name": "core",
            "template": "core",
            "max": 4,
            "activity_bindings": [{"destination": "reports"}],
        }
    ],
}


async def test_pools_come_after_all_else_and_keep_what_an_operator_set(tmp_path: Path) -> None:
    async with Life(tmp_path, of(POOLS)) as life:
        assert life.told() == [("definitions.imported", {"file": "definitions.json", "count": 3})]
        pool = life.map.pools.find("shop", "core")
        assert (pool.template, pool.settings.max) == ("core", 4)
        assert [one.source for one in life.map.bindings_to("shop", "queue", "reports")] == ["core-activity-xchg"]
        await life.shell.propose(
            c.SetPool(vhost="shop", name="core", settings=replace_settings(pool.settings, max=7), only=("max",))
        )
    async with Life(tmp_path, of(POOLS)) as life:
        [(kept, why), (known, _)] = life.told()
        assert (kept, known) == ("definitions.kept", "definitions.known")
        assert why["why"] == "pool 'core' in vhost 'shop' has max 7, and not 4: change it with set"
        pool = life.map.pools.find("shop", "core")
        assert pool.settings.max == 7
        await life.shell.propose(c.DeletePool(vhost="shop", name="core", force=True))
        while life.map.pools.find("shop", "core") is not None:  # noqa: ASYNC110 - its queues close first
            await asyncio.sleep(0.01)
    async with Life(tmp_path, of(POOLS)) as life:
        assert life.told() == [("definitions.imported", {"file": "definitions.json", "count": 3})]
        assert life.map.pools.find("shop", "core").settings.max == 4, "what a file names is there at each start"
        assert life.map.bindings_to("shop", "queue", "reports")


async def test_a_pool_that_cannot_be_is_told_and_the_node_goes_on() -> None:
    document = POOLS | {"pools": [{"vhost": "nowhere", "name": "core"}]}
    async with Life(None, of(document)) as life:
        [(event, facts)] = life.told()
        assert event == "definitions.refused"
        assert "'nowhere'" in facts["why"]
        assert life.map.queue("shop", "reports") is None, "all or none, as far as it is known before"
        assert life.shell.started


async def test_sections_of_the_config_file_declare_pools(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        """
        [pools.core]
        driver = "subprocess"
        command = ["/bin/true"]
        declare = { max = 4 }
        [pools.shop]
        declare = { vhost = "shop", name = "a b" }
        [pools.later]
        driver = "subprocess"
        command = ["/bin/true"]
        """
    )
    definitions = tmp_path / "definitions.json"
    definitions.write_text('{"vhosts": [{"name": "shop"}]}')
    options = load(file, {"definitions_file": str(definitions)}).options()
    for event in ("definitions.imported", "definitions.known"):
        async with Life(tmp_path / "data", options.definitions) as life:
            known, made = life.told()
            assert known[1]["count"] == 1, "vhosts come first"
            assert made == (event, {"file": str(file), "count": 2})
            core, shop = life.map.pools.find("/", "core"), life.map.pools.find("shop", "a b")
            assert (core.template, core.settings.max) == ("core", 4)
            assert (shop.template, shop.settings.max) == ("noop", 8), "nobody starts workers of noop"
            assert life.map.pools.find("/", "later") is None
        options = load(file, {"definitions_file": str(definitions)}).options()


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        ("{ nothing = 1 }", r"pools\.core\.declare: no setting 'nothing': known are vhost, name, request_ttl_ms"),
        ("{ max = 'many' }", r"pools\.core\.declare: max should be a number"),
        ("{ min = 9 }", r"pools\.core\.declare: min is 9 and max 8"),
        ("{ vhost = 7 }", r"pools\.core\.declare: vhost and name are texts"),
        ("{ name = '' }", r"pools\.core\.declare: "),
        ("'yes'", r"pools\.core: expected"),
    ],
)
def test_a_section_that_declares_nothing_that_can_be_ends_the_start(tmp_path: Path, declare: str, words: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f"[pools.core]\ndeclare = {declare}\n")
    with pytest.raises(ConfigError, match=words):
        load(file)


async def test_another_import_is_waited_for(tmp_path: Path) -> None:
    """Another member's, with the same file: this one's is contended until it has gone."""
    async with Life(None, None) as life:
        staged = c.ImportDefinitions(import_id="other", number=0, commands=(), last=False, apply=0)
        await life.shell.propose(staged)
        assert life.map.importing is not None
        importing = asyncio.create_task(of(DOCUMENT).bring_in(life.shell))
        await life.shell.propose(c.AddVhost(name="meanwhile"))
        assert not importing.done()
        pools = asyncio.create_task(of({"pools": [{"vhost": "/", "name": "core"}]}).bring_in(life.shell))
        await life.shell.propose(c.DropImport(import_id="other"))
        await asyncio.gather(importing, pools)
        assert len(life.map.queues("shop")) == 250
        assert life.map.pools.find("/", "core") is not None


async def test_who_is_stopped_meanwhile_does_not_wait() -> None:
    async with Life(None, None) as life:
        await life.shell.propose(c.ImportDefinitions(import_id="other", number=0, commands=(), last=False, apply=0))
        definitions = of(DOCUMENT)
        importing = asyncio.create_task(definitions.bring_in(life.shell))
        await life.shell.propose(c.AddVhost(name="meanwhile"))
    with pytest.raises(ValueError, match="the node was stopped"):
        await importing
    assert not definitions.done


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON: "),
        ("[]", "is no JSON object: "),
        ('{"queues": {}}', "queues: not a list"),
        ('{"queues": [{"vhost": "/"}]}', r"queues\[0\]: "),
        ('{"users": [{"name": "a", "tags": ""}]}', r"users\[0\]: password or password_hash is missing"),
        (json.dumps({"users": [{"name": "a", "tags": "", "password": "x" * 100_000}]}), "users"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(text)
    with pytest.raises(BadDefinitions, match=said) as raised:
        BootDefinitions.read(file)
    assert str(raised.value).startswith(str(file))
    assert "\n" not in str(raised.value)
    assert "xxx" not in str(raised.value), "no password is told"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadDefinitions, match=r"nowhere.json: No such file"):
        BootDefinitions.read(tmp_path / "nowhere.json")
