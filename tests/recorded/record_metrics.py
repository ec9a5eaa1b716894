"""Records the names, types and labels of RabbitMQ's metrics for the set-up of `record.py`:
`python -m tests.recorded.record_metrics`.

Written to `metrics.json` beside this file: for each of RabbitMQ's addresses the families with their type and the label
names of their samples. No value is kept: which name means what is all that dashboards and alert rules rely on.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from clusterbroker.broker.trial.nodes import free_port
from tests.recorded.record import ManagedRabbit, sampled, set_up

ANSWERS = Path(__file__).with_name("metrics.json")
FAMILIES = (
    "channel_exchange_metrics",
    "channel_process_metrics",
    "channel_queue_exchange_metrics",
    "channel_queue_metrics",
    "channel_metrics",
    "connection_churn_metrics",
    "connection_coarse_metrics",
    "connection_metrics",
    "exchange_bindings",
    "exchange_names",
    "node_coarse_metrics",
    "node_metrics",
    "node_persister_metrics",
    "queue_coarse_metrics",
    "queue_consumer_count",
    "queue_metrics",
    "ra_metrics",
    "vhost_status",
    "auth_attempt_metrics",
    "auth_attempt_detailed_metrics",
    "cluster_metrics",
)
ADDRESSES = {
    "/metrics": "/metrics",
    "/metrics/per-object": "/metrics/per-object",
    **{family: f"/metrics/detailed?family={family}" for family in FAMILIES},
    "of a vhost": "/metrics/detailed?vhost=/&family=queue_coarse_metrics",
}


class MeasuredRabbit(ManagedRabbit):
    """With the plugin that tells metrics."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.metrics = free_port()

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        (self.directory / "enabled_plugins").write_text("[rabbitmq_management,rabbitmq_prometheus].\n")
        with (self.directory / "rabbitmq.conf").open("a") as settings:
            settings.write(f"prometheus.tcp.port = {self.metrics}\nprometheus.tcp.ip = 127.0.0.1\n")
        return argv, environment


def told(text: str) -> dict[str, dict[str, Any]]:
    """Type and label names of each family in an exposition."""
    families: dict[str, dict[str, Any]] = {}
    for family in text_string_to_metric_families(text):
        labels = sorted({label for sample in family.samples for label in sample.labels})
        families[family.name] = {"type": family.type, "labels": labels, "samples": len(family.samples)}
    return families


def main() -> int:
    """Records; the exit status."""
    with tempfile.TemporaryDirectory() as directory, MeasuredRabbit(Path(directory) / "node") as node:
        node.start()
        connection = set_up(node.api(), node.port)
        sampled(connection)
        recorded = {}
        for name, address in ADDRESSES.items():
            answer = httpx.get(f"http://127.0.0.1:{node.metrics}{address}", timeout=30, verify=False)
            recorded[name] = {
                "status": answer.status_code,
                "content_type": answer.headers["content-type"],
                "families": told(answer.text),
            }
        connection.close()
        lines = (f"{json.dumps(name)}: {json.dumps(entry, sort_keys=True)}" for name, entry in recorded.items())
        ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"{len(recorded)} answers of RabbitMQ {node.version} in {ANSWERS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
