"""The management rows: what they ask of whom, the poller against a real server, and what a fall is."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench import management_scenarios as scenarios
from bench import rabbitmq_root
from bench.managed import ManagedNode, ManagedRabbitMq
from bench.management_workloads import MANAGEMENT_WORKLOADS
from bench.polling import Answer, Polls, _Poller, faults_of, polling, spread_ms
from bench.workloads import QUICK, Bound, Scale

EVERY_S = 0.02


def answer(asked_ns: int, taken_ms: float, status: int = 200) -> Answer:
    return Answer(asked_ns, taken_ms, status, 10)


def test_the_rows_are_the_issues_figures() -> None:
    targets = {
        (workload.name, figure.key): (figure.target.bound, figure.target.value)
        for workload in MANAGEMENT_WORKLOADS
        for figure in workload.figures
        if figure.target is not None
    }
    assert targets == {
        ("management-read", "page_p99_ms"): (Bound.MAX, 50),
        ("management-read", "metrics_p99_ms"): (Bound.MAX, 200),
        ("management-read", "half_fall_percent"): (Bound.MAX, 10),
        ("management-read", "full_fall_percent"): (Bound.MAX, 10),
        ("management-counting", "fall_percent"): (Bound.MAX, 1),
        ("definitions-import", "everywhere_s"): (Bound.MAX, 20),
        ("page-first", "form_p99_s"): (Bound.MAX, 1),
        ("page-first", "overview_p99_s"): (Bound.MAX, 1),
    }
    scale = Scale()
    assert (scale.managed_queues, scale.managed_connections, scale.definitions) == (1_000, 1_000, 10_000)


@pytest.mark.parametrize("scale", [Scale(), QUICK])
def test_the_load_comes_over_all_connections_and_leaves_queues_idle(scale: Scale) -> None:
    load = scenarios._load_of(scale, MANAGEMENT_WORKLOADS[0])
    assert load.publishers + load.consumers == scale.managed_connections
    assert load.queues == load.publishers < scale.managed_queues


def test_a_fall_is_one_of_medians_and_pairs_say_how_sure_it_is() -> None:
    told = scenarios.fall_percent([100, 200, 150], [90, 120, 165])
    assert told == pytest.approx({"fall_percent": 20, "fall_min_percent": -10, "fall_max_percent": 40})
    assert scenarios.fall_percent([0], [10])["fall_percent"] == 100


def test_only_what_was_asked_while_the_load_ran_counts() -> None:
    polls = Polls({"u": [answer(9, 1), answer(10, 2), answer(20, 3), answer(21, 4)]})
    assert [one.taken_ms for one in polls.between("u", 10, 20)] == [2, 3]


def test_an_answer_that_is_none_is_a_fault() -> None:
    assert faults_of([answer(1, 1)], "page") == []
    assert faults_of([], "page") == ["page was never asked"]
    assert faults_of([answer(1, 1), answer(2, 1, 503), answer(3, 1, 0)], "page") == [
        "page: 2 of 3 answers were not 200, the first 503"
    ]


def test_figures_of_many_answers() -> None:
    answers = [answer(number, float(number)) for number in range(100, 0, -1)]
    assert spread_ms(answers, "page") == {"page_p50_ms": 51, "page_p99_ms": 100, "page_max_ms": 100}


def test_the_document_of_definitions_declares_each_queue_once() -> None:
    told = json.loads(scenarios.definitions(3, {"x-durability": "fsync"}))
    assert [queue["name"] for queue in told["queues"]] == ["many0", "many1", "many2"]
    assert {queue["arguments"]["x-durability"] for queue in told["queues"]} == {"fsync"}


def test_both_brokers_listen_on_loopback_only(tmp_path: Path) -> None:
    ours = ManagedNode(tmp_path / "ours")
    argv, _ = ours._command()
    assert argv[argv.index("--http") + 1] == f"127.0.0.1:{ours.http_port}"
    assert ours.page_url.startswith(f"http://127.0.0.1:{ours.http_port}/api/queues?")
    if rabbitmq_root.installed() is None:
        pytest.skip("RabbitMQ is not installed")
    peer = ManagedRabbitMq(tmp_path / "peer")
    peer.directory.mkdir()
    peer._command()
    written = (peer.directory / "rabbitmq.conf").read_text()
    for what, port in (("management", peer.http_port), ("prometheus", peer.metrics_port)):
        assert f"{what}.tcp.ip = 127.0.0.1\n{what}.tcp.port = {port}\n" in written


# -- the poller -----------------------------------------------------------------------------------------------

Serve = Callable[[int], int]
"""The status of an answer; may take its time."""


class Site:
    """A server that keeps what it was asked."""

    def __init__(self, serve: Serve) -> None:
        self.asked: list[str] = []
        self.enough = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status = serve(len(site.asked))
                site.asked.append(f"{self.path} {self.headers['authorization']}")
                self.send_response(status)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")
                if len(site.asked) >= 5:
                    site.enough.set()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/page?size=1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def site() -> Iterator[Callable[[Serve], Site]]:
    sites: list[Site] = []

    def made(serve: Serve) -> Site:
        sites.append(Site(serve))
        return sites[-1]

    yield made
    for one in sites:
        one.server.shutdown()
        one.server.server_close()


def polled(site: Site, every_s: float = EVERY_S) -> list[Answer]:
    with polling([site.url], every_s) as polls:
        assert site.enough.wait(20), "it is asked again and again"
    return polls.answers[site.url]


def test_a_page_is_asked_as_a_user_at_a_steady_rate(site: Callable[[Serve], Site]) -> None:
    there = site(lambda _number: 200)
    before_ns = time.monotonic_ns()
    answers = polled(there)
    assert {(one.status, one.size_bytes) for one in answers} == {(200, 2)}
    assert len(answers) == len(there.asked) >= 5
    assert set(there.asked) == {"/page?size=1 Basic Z3Vlc3Q6Z3Vlc3Q="}
    first_ns, last_ns = answers[0].asked_ns, answers[-1].asked_ns
    assert before_ns < first_ns < last_ns < time.monotonic_ns()
    assert (last_ns - first_ns) / 1e9 >= (len(answers) - 1) * EVERY_S - 0.001


def test_an_error_is_kept_with_its_status(site: Callable[[Serve], Site]) -> None:
    answers = polled(site(lambda number: 503 if number == 2 else 200))
    assert [one.status for one in answers[:4]] == [200, 200, 503, 200]


def test_who_had_to_wait_for_a_slow_answer_counts_from_when_he_was_due(site: Callable[[Serve], Site]) -> None:
    released = threading.Event()

    def slow(number: int) -> int:
        if number == 1:
            released.wait(15 * EVERY_S)
        return 200

    answers = polled(site(slow))
    slow_one, behind = answers[1], answers[2]
    assert slow_one.taken_ms >= 15 * EVERY_S * 1000 - 1
    assert behind.asked_ns < slow_one.asked_ns + slow_one.taken_ms * 1e6
    assert behind.taken_ms > 10 * EVERY_S * 1000


def test_a_server_that_is_not_there_gives_an_answer_without_a_status() -> None:
    assert _Poller("http://127.0.0.1:1/page", 10, "guest:guest", threading.Event())._ask() == (0, 0)
