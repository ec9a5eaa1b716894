"""Worker pools on loopback: the figures of the page's section 7.

    python -m bench.pools [--nodes 1,3] [--calls 1000] [--keys 1000] [--idle 10000]
                          [--cold 20000] [--json]

    call, raw            request to a worker, answer to an exclusive queue, both in one process: the broker's part
    call, library        the same by `clusterbroker_workers`: a worker process and `Pool.call`
    new key              first request of a key -> its answer: a worker process is started (subprocess driver)
    keys at once         requests for so many new keys -> all groups are there; -> all requests stand in their queues
    idle groups          so many keys with a group and no request, one node: memory that the broker took for them, and
                         processor time of its processes, but for workers, while nothing happens, in parts of one
                         processor
    cold keys            so many keys that had a group once, one node: memory that the broker took for them; and what
                         the policy has learnt of 100,000 that had a worker each (pure)
    a tenfold step       requests of 50 ms at one key: until 300 of them are answered, and workers at most
    controller step      one step of the policy over 10,000 idle groups, and over 1,000 that wait for room (pure)

Times in ms, `s` where it says so. A run takes two minutes or less a cluster; on a machine that does other work the
figures say little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import tracemalloc
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from bench.clusters import OurCluster, OurMember
from bench.confirmed import Confirmed
from bench.generator import compiled
from bench.managed import ManagedNode, asked, await_ready
from bench.servers import Server
from clusterbroker.broker.pools.facts import (
    GroupFacts,
    GroupState,
    PlaceFacts,
    PoolFacts,
    Settings,
    WorkerFacts,
    WorkerState,
)
from clusterbroker.broker.pools.policy import Gone, Policy
from clusterbroker.broker.trial.client import Client, Delivery, target
from clusterbroker.broker.trial.nodes import free_port
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker_workers import Pool, Request, Worker

PATIENCE_S: Final = 120.0
NEW_KEYS: Final = 20
SLOW_S: Final = 20.0
"""What is measured one after the other ends then, with what there is by then: a busy machine ends in time too."""
LEAST: Final = 3
STEP_CALLS: Final = 300
SERVICE_S: Final = 0.05
LOAD_S: Final = 1.0
"""`L` of section 7: from the start of a worker until it connects."""
MEMORY_BYTES: Final = 16 << 20
"""Promised to a worker: places are not to be full of them."""
REST_S: Final = 30.0
EXPIRES_MS: Final = 60_000
WAVE: Final = 2000
"""Cold keys that have their groups at once."""
COLD_LEARNT: Final = 100_000
PEAK_BYTES: Final = 50 << 20

Figure = dict[str, Any]


class Echo(Worker):
    """Answers with what it got, after as many seconds as the path says."""

    def handle(self, request: Request) -> bytes:
        """Waits, and answers."""
        if request.path:
            time.sleep(float(request.path))
        return request.body


# -- brokers ------------------------------------------------------------------------------------------------------


def template(directory: Path) -> Path:
    """A config file with the templates `echo`, whose workers are of this module, `native`, whose workers are
    bench/load/worker.cc, and `loading`, the same with LOAD_S before each of them connects."""
    root = Path(__file__).resolve().parents[1]
    native = [str(compiled("worker"))]
    sections = {
        "echo": ([sys.executable, "-m", "clusterbroker_workers", "bench.pools:Echo"], "PYTHONPATH", str(root)),
        "native": (native, "BENCH_LOAD_MS", "0"),
        "loading": (native, "BENCH_LOAD_MS", f"{LOAD_S * 1000:.0f}"),
    }
    path, text = directory / "broker.toml", ""
    for name, (command, variable, value) in sections.items():
        text += f'[pools.{name}]\ndriver = "subprocess"\ncommand = {json.dumps(command)}\n'
        text += f"environment = {{ {variable} = {json.dumps(value)} }}\n"
        text += f"memory_bytes = {MEMORY_BYTES}\n" + ('user = "root"\n' if os.geteuid() == 0 else "")
    path.write_text(text)
    path.chmod(0o600)
    return path


class PoolNode(ManagedNode):
    """A node with the template."""

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        return [*argv, "--config", str(template(self.directory))], environment


class PoolMember(OurMember):
    """One of three with the template."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.http_port = free_port()

    @property
    def url(self) -> str:
        """Of the management API, without a path."""
        return f"http://127.0.0.1:{self.http_port}"

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        more = ["--config", str(template(self.directory)), "--http", f"127.0.0.1:{self.http_port}"]
        return [*argv, *more], environment


class PoolCluster(OurCluster):
    """Three of them."""

    member_kind = PoolMember


class Broker:
    """What is measured at. `ports`: AMQP; the caller is at the first one, a worker that comes by itself at the last."""

    def __init__(self, ports: list[int], http_port: int) -> None:
        self.ports = ports
        self.http = f"http://127.0.0.1:{http_port}/api"

    def url(self, place: int = 0) -> str:
        """AMQP."""
        return f"amqp://guest:guest@127.0.0.1:{self.ports[place]}/"

    def declare(self, pool: str, template_name: str = "noop", **settings: Any) -> None:
        """As soon as a place has told of the template. Raises TimeoutError."""
        body = json.dumps({"template": template_name, **settings}).encode()

        def done() -> bool:
            try:
                self._ordered("PUT", pool, body)
            except urllib.error.HTTPError:
                return False
            return True

        until(f"pool {pool} is declared", done)

    def delete(self, pool: str) -> None:
        """With its groups; its workers are ended. Raises OSError."""
        self._ordered("DELETE", f"{pool}?force=true")

    def _ordered(self, method: str, path: str, body: bytes | None = None) -> None:
        headers = {"authorization": f"Basic {b64encode(b'guest:guest').decode()}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self.http}/pools/%2F/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30):
            pass

    def document(self, path: str) -> Any:
        """Of the management API."""
        return asked(f"{self.http}/{path}")


@contextmanager
def one_node(directory: Path) -> Iterator[tuple[PoolNode, Broker]]:
    """Started; its management API answers."""
    with PoolNode(directory) as node:
        node.start()
        yield node, Broker([node.port], node.http_port)


@contextmanager
def nodes_with_pools(directory: Path, nodes: int) -> Iterator[tuple[Sequence[PoolNode | PoolMember], Broker]]:
    """One node, or a cluster of three, as `one_node`."""
    if nodes == 1:
        with one_node(directory) as (node, broker):
            yield [node], broker
        return
    with PoolCluster(directory) as cluster:
        cluster.start()
        members = [member for member in cluster.members if isinstance(member, PoolMember)]
        for member in members:
            await_ready(member.url)
        yield members, Broker([member.port for member in members], members[0].http_port)


def until(what: str, holds: Callable[[], bool], every_s: float = 0.02) -> float:
    """Waits; how long it took, s. Raises TimeoutError."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > PATIENCE_S:
            raise TimeoutError(f"not so after {PATIENCE_S:.0f} s: {what}")
        time.sleep(every_s)
    return time.monotonic() - began_s


def processor_s(server: Server) -> float:
    """Of the broker without the workers that it has started; our nodes say it of each process."""
    used: Any = server.processor_s()
    return float(used[server.name] + used["management"] if isinstance(used, dict) else used)


# -- figures ------------------------------------------------------------------------------------------------------


def spread(name: str, times_s: list[float]) -> Figure:
    """p50 and p99, in ms."""
    ordered = sorted(times_s)
    at = [ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000 for part in (0.5, 0.99)]
    return {"what": name, "p50": round(at[0], 2), "p99": round(at[1], 2), "unit": "ms", "count": len(ordered)}


async def raw_calls(
    worker_url: str, caller_url: str, count: int, queue: str = "raw-req-k", exchange: str = "raw", key: str = "k"
) -> list[float]:
    """One after the other, s."""
    worker, caller = await Client.open(target(worker_url)), await Client.open(target(caller_url))
    answered: asyncio.Queue[bytes] = asyncio.Queue()
    await caller.call(m.QueueDeclare(queue="bench-answers", exclusive=True))

    def serve(delivery: Delivery) -> None:
        worker.publish("bench-answers", delivery.body, properties=Properties())
        worker.acknowledge(delivery.tag)

    worker.on_deliver = serve
    caller.on_deliver = lambda delivery: answered.put_nowait(delivery.body)
    await worker.call(m.BasicConsume(queue=queue, consumer_tag="w"))
    await caller.call(m.BasicConsume(queue="bench-answers", consumer_tag="c", no_ack=True))
    times = []
    for number in range(count + count // 10):
        began_s = time.perf_counter()
        caller.publish(key, b"%d" % number, exchange=exchange)
        body = await asyncio.wait_for(answered.get(), PATIENCE_S)
        assert body == b"%d" % number, "each answer is of its request"
        times.append(time.perf_counter() - began_s)
    await worker.close()
    await caller.close()
    return times[count // 10 :]


def one_by_one(pool: Pool, keys: Iterable[str]) -> list[float]:
    """Calls, each after the answer to the one before, s."""
    times: list[float] = []
    for number, key in enumerate(keys):
        if sum(times) > SLOW_S and len(times) >= LEAST:
            break
        began_s = time.perf_counter()
        assert pool.call(key, b"%d" % number, timeout_s=PATIENCE_S).body == b"%d" % number
        times.append(time.perf_counter() - began_s)
    return times


async def published(broker: Broker, pool: str, count: int, first: int = 0, **about: str) -> None:
    """One request for each of so many keys, all confirmed."""
    client = await Client.open(target(broker.url()), timeout_s=30, heartbeat_s=60)
    confirmed = Confirmed(client)
    await client.call(m.ConfirmSelect())
    for number in range(first, first + count):
        client.publish(f"k{number}", b"x", exchange=pool, properties=Properties(**about) if about else None)
    await asyncio.wait_for(confirmed.wait(count), PATIENCE_S)
    await client.close()


def keys_at_once(broker: Broker, count: int) -> list[Figure]:
    """Groups, and requests in their queues."""
    broker.declare("many")
    began_s = time.monotonic()
    asyncio.run(published(broker, "many", count))
    until("all groups are there", lambda: broker.document("pools/%2F/many")["groups"] == count)
    groups_s = time.monotonic() - began_s
    until("all requests have moved", lambda: broker.document("pools/%2F/many")["waiting"] == count)
    moved_s = time.monotonic() - began_s
    return [
        {"what": f"{count} keys at once: groups", "p50": round(groups_s, 2), "unit": "s", "count": count},
        {"what": f"{count} keys at once: moved, as sampled", "p50": round(moved_s, 2), "unit": "s", "count": count},
    ]


def idle_groups(node: PoolNode, broker: Broker, count: int) -> list[Figure]:
    """Their requests expire, behind the time that so many groups take, and they stay bound."""
    broker.declare("idle", max_groups=count, unbind_delay_s=86_400)
    before = node.settled_memory().rss_bytes
    asyncio.run(published(broker, "idle", count, expiration=str(EXPIRES_MS)))
    until("all groups are there", lambda: broker.document("pools/%2F/idle")["groups"] == count)
    until("requests wait, as sampled", lambda: broker.document("pools/%2F/idle")["waiting"])
    until("no request is left", lambda: not broker.document("pools/%2F/idle")["waiting"])
    time.sleep(REST_S)  # what is told at rest has been told
    mib = (node.settled_memory().rss_bytes - before) / (1 << 20)
    used, began_s = node.processor_s(), time.monotonic()
    time.sleep(REST_S)
    parts = {
        name: 100 * (used_s - used.get(name, 0.0)) / (time.monotonic() - began_s)
        for name, used_s in node.processor_s().items()
        if name != "worker"
    }
    return [
        {"what": f"{count} idle groups: memory", "p50": round(mib, 1), "unit": "MiB", "count": count},
        *(
            {"what": f"{count} idle groups: {name}", "p50": round(percent, 2), "unit": "%", "count": count}
            for name, percent in sorted(parts.items())
        ),
    ]


def cold_keys(node: PoolNode, broker: Broker, count: int) -> list[Figure]:
    """Their one request expires at once, and their group goes as soon as it may. As many as WAVE before them do the
    same, for what the first ones alone take."""
    broker.declare("cold", max_groups=2 * WAVE, unbind_delay_s=0, stop_delay_s=0)
    before = 0
    for first in range(0, WAVE + count, WAVE):
        if first == WAVE:
            before = node.settled_memory().rss_bytes
        asyncio.run(published(broker, "cold", min(WAVE, WAVE + count - first), first, expiration="1"))
        until("no group is left", lambda: not broker.document("pools/%2F/cold")["groups"], every_s=0.2)
    took = node.settled_memory().rss_bytes - before
    return [
        {"what": f"{count} cold keys: memory", "p50": round(took / (1 << 20), 1), "unit": "MiB", "count": count},
        {"what": f"{count} cold keys: memory each", "p50": round(took / count), "unit": "B", "count": count},
    ]


def cold_keys_learnt() -> list[Figure]:
    """Pure: each had a worker, whose start and memory the policy has seen."""
    policy, places, ready = Policy(Settings(memory=1), 0.0), {"p": PlaceFacts("p", 1 << 40)}, WorkerState("ready")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for first in range(0, COLD_LEARNT, WAVE):
        keys, now_s = [f"k{number}" for number in range(first, first + WAVE)], float(first)
        groups = {
            key: GroupFacts(key, GroupState("active"), workers=(WorkerFacts(f"w-{key}", "p", ready, now_s),))
            for key in keys
        }
        for key in keys:
            policy.worker_ready(key, "p", 0.5, now_s)
        policy.step(PoolFacts(groups, places), now_s)
        for key in keys:
            policy.worker_gone(Gone(key, f"w-{key}", "p", ready=True, asked=True, peak=PEAK_BYTES), now_s + 1)
        policy.step(PoolFacts({}, places), now_s + 1)
    del groups, keys
    took = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    known = len(policy.costs)
    return [
        {"what": "cold keys that the policy knows", "p50": known, "unit": "", "count": COLD_LEARNT},
        {"what": "cold keys in the policy: memory", "p50": round(took / (1 << 20), 1), "unit": "MiB",
         "count": COLD_LEARNT},
        {"what": "cold keys in the policy: memory each", "p50": round(took / known), "unit": "B", "count": known},
    ]  # fmt: skip


def step_up(broker: Broker, pool: Pool) -> list[Figure]:
    """A backlog of one key."""
    pool.call("step", b"x", path="0.0", timeout_s=PATIENCE_S)
    began_s, most = time.monotonic(), 1
    with ThreadPoolExecutor(STEP_CALLS) as threads:
        calls = [
            threads.submit(pool.call, "step", b"x", path=str(SERVICE_S), timeout_s=PATIENCE_S)
            for _ in range(STEP_CALLS)
        ]
        while not all(call.done() for call in calls):
            rows = broker.document("pools/%2F/echo/workers")
            most = max(most, sum(row["key"] == "step" and not row["revoked"] for row in rows))
            time.sleep(0.1)
        for call in calls:
            call.result()
    took_s = time.monotonic() - began_s
    alone_s = STEP_CALLS * SERVICE_S
    return [
        {"what": f"{STEP_CALLS} x 50 ms at one key ({alone_s:.0f} s for one worker)", "p50": round(took_s, 2),
         "unit": "s", "count": STEP_CALLS},
        {"what": "workers of it at most", "p50": most, "unit": "", "count": 1},
    ]  # fmt: skip


def controller_steps() -> list[Figure]:
    """Pure."""
    found = []
    for name, count, ready in (("10,000 idle groups", 10_000, 0), ("1,000 keys without room", 1000, 1)):
        groups = {}
        for number in range(count):
            workers = () if ready else (WorkerFacts(f"w{number}", "p", WorkerState("ready"), 0.0),)
            groups[f"k{number}"] = GroupFacts(f"k{number}", GroupState("active"), workers=workers, ready=ready)
        facts = PoolFacts(groups, {"p": PlaceFacts("p", 0 if ready else 100 * count)})
        policy, times = Policy(Settings(memory=1), 0.0), []
        for step in range(20):
            began_s = time.perf_counter()
            policy.step(facts, float(step))
            times.append(time.perf_counter() - began_s)
        found.append(spread(f"controller step: {name}", times[2:]))
    return found


def measured(broker: Broker, calls: int, keys: int) -> list[Figure]:
    """All at one broker."""
    broker.declare("raw")
    found = [spread("call, raw", asyncio.run(raw_calls(broker.url(-1), broker.url(), calls)))]
    broker.declare("echo", "echo")
    with Pool(broker.url(), "echo") as pool:
        first = one_by_one(pool, (f"new-{number}" for number in range(NEW_KEYS)))
        found += [
            spread("call, library", one_by_one(pool, repeat("new-0", calls))),
            spread("new key -> answer", first),
        ]
        found += step_up(broker, pool)
    return found + keys_at_once(broker, keys)


def table(rows: list[Figure]) -> str:
    """For people."""
    lines = [f"{'':44}{'p50':>10}{'p99':>10}  unit   of"]
    for row in rows:
        where = "" if "nodes" not in row else f"{row['nodes']} node{'s' * (row['nodes'] > 1)}: "
        lines.append(
            f"{where + row['what']:44}{row['p50']:>10}{row.get('p99', ''):>10}  {row['unit']:5}{row['count']:>6}"
        )
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench.pools", description="Worker pools: section 7's figures.")
    parser.add_argument("--nodes", default="1,3", help="1, 3 or both, with a comma")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--idle", type=int, default=10_000, help="groups without a request")
    parser.add_argument("--cold", type=int, default=20_000, help="keys that had a group")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    said = parser.parse_args()
    rows = controller_steps() + cold_keys_learnt()
    for nodes in map(int, said.nodes.split(",")):
        directory = Path(tempfile.mkdtemp(prefix="bench-pools-"))
        with nodes_with_pools(directory, nodes) as (_, broker):
            found = measured(broker, said.calls, said.keys)
        if nodes == 1:  # each where nothing else is
            with one_node(directory / "idle") as (node, broker):
                found += idle_groups(node, broker, said.idle) if said.idle else []
            with one_node(directory / "cold") as (node, broker):
                found += cold_keys(node, broker, said.cold) if said.cold else []
        rows += [{"nodes": nodes, **row} for row in found]
    print(json.dumps(rows) if said.json else table(rows))


if __name__ == "__main__":
    main()
