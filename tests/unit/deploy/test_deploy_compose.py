"""The compose file: valid by the Compose Specification, and brought up by podman-compose, by its own first lines, with
an image of the Containerfile's last stage. The network is one of the test's own."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jsonschema_rs
import pika
import pytest
import yaml

from clusterbroker import Broker
from clusterbroker.broker.boot_definitions import BootDefinitions
from clusterbroker.broker.config import load
from clusterbroker.broker.foreman.templates import read_templates
from clusterbroker_workers import Pool
from tests.support.daemons import Apart, Missing
from tests.support.images import BASE, base_image, context

COMPOSE = Path(__file__).resolve().parents[3] / "deploy" / "compose" / "compose.yaml"
SPECIFICATION = Path(__file__).parent / "compose_spec.json"
SAID = yaml.safe_load(COMPOSE.read_text())
PORTS = {name: int(service["ports"][0].split(":")[1]) for name, service in SAID["services"].items()}
PATIENCE_S = 180.0
COUNT = 500
T = TypeVar("T")
logging.getLogger("pika").setLevel(logging.CRITICAL)


def head() -> list[str]:
    """The commands in the first lines of the file."""
    return re.findall(r"^#   (\S.*)$", COMPOSE.read_text(), re.MULTILINE)


def test_it_is_valid_by_the_specification() -> None:
    validator = jsonschema_rs.validator_for(json.loads(SPECIFICATION.read_text()))
    assert [str(error) for error in validator.iter_errors(SAID)] == []
    SAID["services"]["a"] |= {"port": ["5672:5672"]}
    try:
        assert not validator.is_valid(SAID), "a name that is none is found"
    finally:
        del SAID["services"]["a"]["port"]


@pytest.mark.processes
def test_its_pool_is_declared_and_served(tmp_path: Path) -> None:
    """But for the containers: what the file puts into them is tried by a node and a worker of its own."""
    said = yaml.safe_load(COMPOSE.with_name("pools.yaml").read_text())
    validator = jsonschema_rs.validator_for(json.loads(SPECIFICATION.read_text()))
    assert [str(error) for error in validator.iter_errors(said)] == []
    assert said["services"].keys() == SAID["services"].keys()
    files = {}
    for config in said["x-pools"]["configs"]:
        made = tmp_path / Path(config["target"]).name
        made.write_text(said["configs"][config["source"]]["content"])
        files[config["target"]] = str(made)
    file = tmp_path / "pools.toml"
    assert said["x-pools"]["command"] == ["start", "--config", next(path for path in files if files[path] == str(file))]
    definitions = load(file).options().definitions
    assert isinstance(definitions, BootDefinitions)
    assert [one.declare.name for one in definitions.pools] == ["squares"]
    (template,) = read_templates(file).values()
    module, _, name = template.command[-1].partition(":")
    command = [sys.executable, *template.command[1:-1], f"{files[module]}:{name}"]
    assert template.command[0] == "python"
    with Broker(pools={"squares": command}) as broker, Pool(broker.url, "squares") as pool:
        assert pool.call("any key", b"12", timeout_s=60).body == b"144"


def test_its_first_lines_make_the_secrets_and_bring_it_up() -> None:
    made = {name for line in head() for name in re.findall(r"> ([\w-]+)", line)}
    assert made == {secret["file"].removeprefix("./") for secret in SAID["secrets"].values()} == set(SAID["secrets"])
    assert (head()[0], head()[-1]) == ("cd deploy/compose", "docker compose up --build")


class Three:
    """The three nodes of the file, in containers."""

    def __init__(self, apart: Apart, directory: Path) -> None:
        self.apart, self.directory = apart, directory
        self.program = str(Path(sys.executable).with_name("podman-compose"))

    def compose(self, *words: str, whole: bool = True) -> str:
        done = self.apart.run(self.program, "--file", str(self.directory / "compose.yaml"), *words)
        assert not (whole and done.returncode), done.stdout
        return done.stdout

    def podman(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.apart.run("podman", *words)

    def container(self, name: str) -> str:
        return f"compose_{name}_1"

    def healthy(self, name: str) -> None:
        """Waits until the image's own check of a node says so."""
        end_s = time.monotonic() + PATIENCE_S
        while (done := self.podman("healthcheck", "run", self.container(name))).returncode:
            logs = self.podman("logs", "--tail", "20", self.container(name)).stdout
            assert time.monotonic() < end_s, f"{name} is not healthy: {done.stdout} {logs}"

    def outside(self, act: Callable[[], T]) -> T:
        """What `act` answers in the network where the ports are published."""

        def entered() -> T:
            with open(f"/proc/{self.apart.holder.process.pid}/ns/net") as network:
                os.setns(network.fileno(), os.CLONE_NEWNET)
            return act()

        with ThreadPoolExecutor(1) as thread:  # its network goes with it
            return thread.submit(entered).result()

    def connection(self, name: str) -> pika.BlockingConnection:
        """By the published port of a node, as the first user; inside `outside`."""
        password = (self.directory / "password").read_text()
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", PORTS[name], credentials=pika.PlainCredentials("admin", password))
        )

    def put(self, name: str, first: int) -> None:
        """COUNT confirmed messages."""

        def act() -> None:
            with self.connection(name) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare("kept", durable=True)
                for number in range(first, first + COUNT):
                    channel.basic_publish(
                        "", "kept", b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True
                    )

        self.outside(act)

    def taken(self, name: str, count: int) -> list[int]:
        """So many messages, then none; acknowledged."""

        def act() -> list[int]:
            with self.connection(name) as connection:
                channel, found = connection.channel(), list[int]()
                while len(found) < count:
                    method, _, body = channel.basic_get("kept")
                    if method is not None:
                        found.append(int(body))
                        channel.basic_ack(method.delivery_tag)
                assert channel.basic_get("kept", auto_ack=True)[0] is None
                return found

        return self.outside(act)

    def told(self, name: str, *words: str) -> Any:
        """What a command of ours inside a node's container prints, as JSON."""
        done = self.podman("exec", self.container(name), "clusterbroker", *words, "--json")
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    state = tmp_path_factory.mktemp("apart")
    try:
        base = base_image()
        apart = Apart(state)
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        if (info := apart.run("podman", "network", "create", "tried")).returncode:
            pytest.skip(f"no networks of containers here: {info.stdout[-300:]}")
        done = apart.run("podman", "import", "--quiet", str(base), BASE)
        assert done.returncode == 0, done.stdout
        sent = context(tmp_path_factory.mktemp("image"))
        words = ("--format", "docker", "--pull=never", "--tag", SAID["services"]["a"]["image"], str(sent))
        done = apart.run("podman", "build", "--file", str(sent / "Containerfile"), *words, timeout_s=900)
        assert done.returncode == 0, done.stdout
        project = tmp_path_factory.mktemp("project") / "deploy" / "compose"
        project.mkdir(parents=True)
        shutil.copy(COMPOSE, project)
        made = " && ".join(line.replace("sudo ", "") for line in head()[1:-1])
        subprocess.run(["sh", "-euc", made], cwd=project, check=True)
        cluster = Three(apart, project)
        try:
            cluster.compose("up", "--detach", "--no-build")
            yield cluster
        finally:
            cluster.compose("down", "--volumes", whole=False)
    finally:
        apart.end()


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.interop
@pytest.mark.skipif(sys.platform != "linux", reason="networks of their own are Linux's")
def test_three_nodes_keep_what_they_confirm_when_one_is_killed(three: Three) -> None:
    for name in PORTS:
        three.healthy(name)
    assert sorted(one["name"] for one in three.told("a", "members")) == list(PORTS)
    three.put("a", 0)
    [leader] = [one["owner"] for one in three.told("a", "queues") if one["name"] == "kept"]
    near, far = sorted(PORTS.keys() - {leader})
    three.compose("kill", leader)
    three.put(near, COUNT)
    assert three.taken(far, 2 * COUNT) == list(range(2 * COUNT))
    three.compose("start", leader)
    three.healthy(leader)
    three.put(leader, 0)
    assert three.taken(near, COUNT) == list(range(COUNT))
    three.compose("down", "--volumes")
    assert three.podman("ps", "--all", "--quiet").stdout == ""
    assert [name for name in three.podman("volume", "ls", "--quiet").stdout.split() if "compose" in name] == []
