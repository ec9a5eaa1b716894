"""Many keys at once with the driver `kubernetes`: a real API server, and Pods that kwok plays.

    scripts/driver-kubernetes && scripts/bench-rivals
    python -m bench.pool_pods [--keys 1000] [--rest 30]

One node of this broker with a template of that driver, etcd, kube-apiserver, and kwok in the place of the kubelet of
one node: it says of each Pod that is bound that it runs, and of each that is deleted that it ended. A thread of this
program binds Pods in the place of a scheduler, and comes as the worker of each with the credential of its Secret, for a
place has eight workers at most that are started and not ready, and 20 starts a second. Printed:

    groups     from the first publish of a request for each key until all groups are there, s
    Running    until as many Pods run, as the API server lists them each LOOK_S
    ready      until the controller knows of as many workers that are ready
    rest       --rest s with all of them running
    ended      from the pool's deletion until no Pod is left

with the processor time that each process took in that part, s, and at the end of it its resident memory, MiB. One
machine plays a whole cluster, so times say how long all of it takes here; what the foreman costs is its column's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from bench.managed import await_ready
from bench.pools import Broker, PoolNode, published
from clusterbroker.broker.trial.client import Client, target
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.support.daemons import TOKEN, Daemon, Missing, kubernetes
from tests.support.kubelet import Api

POOL: Final = "pods"
LOOK_S: Final = 0.5
PATIENCE_S: Final = 1800.0
NAMES: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""A list of objects without what is in them."""
PODS: Final = "/api/v1/namespaces/default/pods"
SECRETS: Final = "/api/v1/namespaces/default/secrets"
QUEUE: Final = "WORKER_REQUESTS_QUEUE"
WHOLE: Final = {"Accept": "application/json"}
TARGET: Final = {"apiVersion": "v1", "kind": "Node", "name": "played"}
NODE: Final = {
    "apiVersion": "v1", "kind": "Node",
    "metadata": {"name": "played", "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": {"type": "kwok"}},
    "status": {"allocatable": {"cpu": "10000", "memory": "100Ti", "pods": "100000"},
               "capacity": {"cpu": "10000", "memory": "100Ti", "pods": "100000"}},
}  # fmt: skip
STAGES: Final = Path(__file__).parent / "played_pods.yaml"


class PodNode(PoolNode):
    """A node whose template is of Pods."""

    kubeconfig: Path

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        path = self.directory / "pods.toml"
        path.write_text(f'[pools.{POOL}]\ndriver = "kubernetes"\nimage = "none"\nkubeconfig = "{self.kubeconfig}"\n')
        path.chmod(0o600)
        return [
            *argv[: argv.index("--config")],
            *argv[argv.index("--config") + 2 :],
            "--config",
            str(path),
        ], environment


@contextmanager
def played(directory: Path) -> Iterator[tuple[Path, dict[str, psutil.Process]]]:
    """The file by which the API server is reached, and its processes. Raises Missing."""
    root = Path(os.environ.get("CLUSTERBROKER_DAEMONS", "~/.cache/clusterbroker/daemons")).expanduser()
    if not (root / "kwok").exists():
        raise Missing(f"no kwok in {root}: scripts/bench-rivals builds it")
    found, config = kubernetes(directory, kubelet=False)
    try:
        (directory / "kwok").mkdir()
        script = f"exec {root}/kwok --kubeconfig {config} --manage-all-nodes -c {STAGES}"
        found.append(Daemon(directory / "kwok", script, {}, lambda: True))
        names = ("etcd", "kube-apiserver", "kwok")
        yield config, dict(zip(names, (psutil.Process(daemon.process.pid) for daemon in found), strict=True))
    finally:
        for daemon in reversed(found):
            daemon.end()


class Cluster:
    """Questions to the API server, each by itself."""

    def __init__(self, config: Path) -> None:
        server = json.loads(config.read_text())["clusters"][0]["cluster"]["server"]
        self._api = Api(int(server.rpartition(":")[2]), TOKEN)
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": NAMES}
        self._names = httpx.Client(base_url=server, headers=headers, verify=False, timeout=60)

    def begin(self) -> None:
        """The node that all Pods are bound to."""
        self._api.ask("POST", "/api/v1/nodes", NODE)

    def ready(self) -> bool:
        """Whether kwok has it."""
        node = self._api.ask("GET", "/api/v1/nodes/played")
        return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", ()))

    def pods(self, phase: str = "") -> int:
        """How many there are; `phase`: that are in it."""
        return len(self._listed({"fieldSelector": f"status.phase={phase}"} if phase else {}))

    async def play(self, over: threading.Event) -> None:
        """Binds Pods as they come, and is the worker of each, until it is over."""
        workers: list[Client] = []
        while not over.is_set():
            unbound = {"fieldSelector": "spec.nodeName="}
            listed = await asyncio.to_thread(self._names.get, PODS, params=unbound, headers=WHOLE)
            for pod in listed.raise_for_status().json()["items"] or []:
                name = pod["metadata"]["name"]
                binding = {"metadata": {"name": name}, "target": TARGET}
                await asyncio.to_thread(self._names.post, f"{PODS}/{name}/binding", json=binding, headers=WHOLE)
                queue = next(one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == QUEUE)
                workers.append(await self._worker(name, queue))
            await asyncio.sleep(LOOK_S / 10)
        for worker in workers:
            worker.abandon("over")

    async def _worker(self, name: str, queue: str) -> Client:
        """As soon as its Secret is there, which comes behind the Pod. It holds what it gets."""
        while (found := await asyncio.to_thread(self._api.ask, "GET", f"{SECRETS}/{name}")) is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S / 10)
        uri = b64decode(found["data"]["WORKER_AMQP_URI"]).decode()
        worker = await Client.open(target(uri), timeout_s=60, heartbeat_s=60)
        await worker.call(m.BasicQos(prefetch_count=1))
        await worker.call(m.BasicConsume(queue=queue, consumer_tag="w"))
        return worker

    def _listed(self, selector: dict[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] | None = self._names.get(PODS, params=selector).raise_for_status().json()["items"]
        return found or []


class Table:
    """A row for each part: its time, and what each process took."""

    def __init__(self, node: PodNode, others: Mapping[str, psutil.Process]) -> None:
        self._node, self._others = node, others
        self._began_s, self._before = time.monotonic(), self._used()
        print(f"{'':12}{'s':>7}" + "".join(f"{name:>22}" for name in self._before), flush=True)

    def _used(self) -> dict[str, float]:
        used = self._node.processor_s()
        for name, process in self._others.items():
            times = process.cpu_times()
            used[name] = times.user + times.system
        return used

    def _memory(self) -> dict[str, int]:
        found = {name: process.memory_info().rss for name, process in self._others.items()}
        return found | self._node.memory_of()

    def part(self, name: str) -> None:
        """It is over, and the next one begins. A row's time is its part's own."""
        now_s, used, memory = time.monotonic(), self._used(), self._memory()
        cells = "".join(
            f"{f'{used[who] - self._before.get(who, 0.0):.2f} s {memory.get(who, 0) >> 20} MiB':>22}"
            for who in self._before
        )
        print(f"{name:12}{now_s - self._began_s:7.1f}{cells}", flush=True)
        self._began_s, self._before = time.monotonic(), self._used()


def ready(broker: Broker) -> int:
    """Workers."""
    return sum(worker["state"] in ("ready", "busy") for worker in broker.document(f"pools/%2F/{POOL}/workers"))


def until(what: str, holds: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not so after {PATIENCE_S:.0f} s: {what}")
        time.sleep(LOOK_S)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench.pool_pods", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--rest", type=float, default=30, help="s with all Pods running")
    said = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config, others = stack.enter_context(played(directory))
        cluster = Cluster(config)
        cluster.begin()
        until("the node is ready", cluster.ready)
        over = threading.Event()
        player = threading.Thread(target=lambda: asyncio.run(cluster.play(over)), daemon=True)
        player.start()
        stack.callback(player.join)
        stack.callback(over.set)
        node = PodNode(directory / "node")
        node.kubeconfig = config
        stack.enter_context(node)
        node.start()
        await_ready(node.url)
        broker = Broker([node.port], node.http_port)
        broker.declare(POOL, POOL, max_groups=said.keys, max_workers=said.keys, start_timeout_s=3600)
        table = Table(node, others)
        asyncio.run(published(broker, POOL, said.keys))
        until("all groups are there", lambda: broker.document(f"pools/%2F/{POOL}")["groups"] == said.keys)
        table.part("groups")
        until("all Pods run", lambda: cluster.pods("Running") >= said.keys)
        table.part("Running")
        until("all workers are ready", lambda: ready(broker) >= said.keys)
        table.part("ready")
        time.sleep(said.rest)
        assert cluster.pods("Running") == cluster.pods() == said.keys, "one Pod for each key"
        table.part("rest")
        broker.delete(POOL)
        until("no Pod is left", lambda: not cluster.pods())
        table.part("ended")


if __name__ == "__main__":
    main()
