"""The alert rules and the real Prometheus: its checker, its own tests of rules, and a server that scrapes a node."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from clusterbroker.broker.trial.nodes import free_port
from tests.faults.node import NodeProcess
from tests.support.processes import ROOT

RULES = ROOT / "deploy" / "prometheus" / "clusterbroker.rules.yaml"
HERE = Path(__file__).parent
PATIENCE_S = 90.0
promtool = shutil.which("promtool")
prometheus = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(promtool is None, reason="no promtool: Debian's package prometheus has it")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def tool(*words: str) -> None:
    assert promtool is not None
    run = subprocess.run([promtool, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_rules_are_well_formed() -> None:
    tool("check", "rules", str(RULES))


@pytest.mark.parametrize("cases", ["prometheus_rules", "prometheus_rules_of_days"])
def test_each_rule_fires_when_it_should(cases: str, tmp_path: Path) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text((HERE / f"{cases}.yaml").read_text().replace("[RULES]", f"[{RULES}]"))
    tool("test", "rules", str(file))


def test_each_rule_has_a_case_and_says_what_to_do() -> None:
    cases = "".join((HERE / name).read_text() for name in ("prometheus_rules.yaml", "prometheus_rules_of_days.yaml"))
    for rule in rules():
        assert f'alertname="{rule["alert"]}"' in cases, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.processes
@pytest.mark.skipif(prometheus is None, reason="no prometheus")
def test_a_prometheus_that_scrapes_a_node_sees_its_alarm(tmp_path: Path) -> None:
    http = free_port()
    node = NodeProcess(tmp_path / "n1", {"http": f"127.0.0.1:{http}", "alarms.memory_bytes": 1})
    config = tmp_path / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [
                    {"job_name": "clusterbroker", "static_configs": [{"targets": [f"127.0.0.1:{http}"]}]}
                ],
            }
        )
    )
    port = free_port()
    words = [
        str(prometheus), f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    node.start()
    try:
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                alerts = "{" + 'alertname="ClusterbrokerMemoryAlarm"' + "}"
                found = until(port, f"ALERTS{alerts}")
                assert found["alertstate"] in ("pending", "firing")
                assert found["severity"] == "critical"
                assert until(port, 'up{job="clusterbroker"} == 1')
            finally:
                server.terminate()
                server.wait(30)
    finally:
        node.stop()


def until(port: int, query: str) -> dict[str, str]:
    """The labels of the first sample that the query has, as soon as it has one."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}", timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            found = []
        if found:
            return dict(found[0]["metric"])
        time.sleep(0.1)
    raise AssertionError(f"no sample of {query} within {PATIENCE_S} s")
