"""Calls over many keys by the load generator: a pool, and quorum queues of RabbitMQ, on one node and on three.

    python -m bench.pool_calls [--nodes 1,3] [--keys 1000] [--seconds 10] [--rounds 2] [--peer rabbitmq|none]

`amqpload calls` has the callers and the workers (bench/load/calls.h): each key has one consumer, and every call is
counted. Requests are persistent. The pool's groups are made by their consumers; RabbitMQ gets as many quorum queues,
bound to `amq.direct` by key. Both are started anew in each round, in turns, and measured after a call of each key.

Printed: calls/s; p50 and p99 of a call, ms, which with so many calls outstanding is mostly waiting; processor time of
all nodes and of the generator, us a call; the load average at the end. Figures of a machine that does other work are
good for comparing rows of one run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.clusters import RabbitMqCluster
from bench.generator import LoadResult, answer
from bench.pools import nodes_with_pools, processor_s
from bench.sampling import Sampled
from bench.servers import RabbitMqNode, Server

SAMPLE_S: Final = 0.25
POOL: Final = "calls"
QUEUES: Final = "calls."
"""Prefix of RabbitMQ's."""


@dataclass(frozen=True)
class Served:
    """A broker of one or more nodes, and where its callers and workers find the keys."""

    servers: Sequence[Server]
    options: Sequence[str]


@contextmanager
def pool(directory: Path, nodes: int, keys: int) -> Iterator[Served]:
    """Of this broker."""
    with nodes_with_pools(directory, nodes) as (servers, broker):
        broker.declare(POOL, max_groups=max(keys, 1000))
        yield Served(servers, ["--exchange", POOL, "--key-prefix", "k", "--queue", f"{POOL}-req-k"])


@contextmanager
def quorum_queues(directory: Path, nodes: int, keys: int) -> Iterator[Served]:
    """Of RabbitMQ."""
    with ExitStack() as stack:
        servers: Sequence[Server]
        if nodes == 1:
            servers = [stack.enter_context(RabbitMqNode(directory))]
            servers[0].start()
        else:
            cluster = stack.enter_context(RabbitMqCluster(directory))
            cluster.start()
            servers = cluster.nodes
        declared = ["--queue", QUEUES, "--count", str(keys), "--args", "x-queue-type=quorum", "--bind", "amq.direct"]
        answer("declare", servers[0].port, [*declared, "--timeout", "600"], 1800)
        yield Served(servers, ["--exchange", "amq.direct", "--key-prefix", f"key.{QUEUES}", "--queue", QUEUES])


BROKERS: Final = {"pool": pool, "rabbitmq": quorum_queues}


def row(name: str, found: LoadResult, used_s: float) -> str:
    """For people."""
    calls = max(1.0, found.rate("call") * found.raw["window_s"])
    own_us = found.raw["cpu_s"] / max(1, found.raw["calls"]) * 1e6
    p50, p99 = (found.latency_ms(quantile) for quantile in ("p50", "p99"))
    faults = ", ".join([*found.faults, *([f"{found.raw['refused']} refused"] if found.raw["refused"] else [])])
    return (
        f"{name:22}{found.rate('call'):9.0f}{p50:9.1f}{p99:9.1f}{used_s / calls * 1e6:11.0f}{own_us:13.1f}"
        f"{os.getloadavg()[0]:7.1f}  {faults or 'each answered once'}"
    )


def measured(name: str, nodes: int, said: argparse.Namespace) -> str:
    """One row."""
    with (
        tempfile.TemporaryDirectory() as directory,
        BROKERS[name](Path(directory) / "server", nodes, said.keys) as served,
    ):
        ports = ",".join(str(server.port) for server in served.servers)
        options = [
            *("--publishers", str(said.callers), "--window", str(said.window), "--keys", str(said.keys)),
            *("--publisher-ports", ports, "--consumer-ports", ports),
            *("--seconds", str(said.seconds), "--drain", "60"),
            *(["--reply-queues"] if said.reply_queues else []),
        ]
        once = ["--count", str(-(-said.keys // said.callers)), "--drain", "300", "--timeout", "300"]
        first = LoadResult(answer("calls", served.servers[0].port, [*served.options, *options, *once], 1800))
        assert first.raw["answered"] == first.raw["calls"], f"a call of each key: {first.raw}"
        with Sampled(lambda: sum(map(processor_s, served.servers)), SAMPLE_S) as used_s:
            found = LoadResult(answer("calls", served.servers[0].port, [*served.options, *options]))
        return row(f"{nodes}, {name}", found, used_s.between(found.raw["from_ns"], found.raw["to_ns"]))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench.pool_calls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", default="1,3", help="1, 3 or both, with a comma")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--window", type=int, default=64, help="calls that each caller has outstanding")
    parser.add_argument("--reply-queues", action="store_true", help="answers to exclusive queues, not direct reply-to")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer", choices=("rabbitmq", "none"), default="rabbitmq")
    said = parser.parse_args()
    print(
        f"{'nodes':22}{'calls/s':>9}{'p50 ms':>9}{'p99':>9}{'broker us':>11}{'generator us':>13}{'load':>7}", flush=True
    )
    names = [name for name in BROKERS if name in ("pool", said.peer)]
    for nodes in map(int, said.nodes.split(",")):
        for _ in range(said.rounds):
            for name in names:
                print(measured(name, nodes, said), flush=True)


if __name__ == "__main__":
    main()
