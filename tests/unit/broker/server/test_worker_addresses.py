"""Where workers connect: TLS before plain, and in its place where one list has both."""

from __future__ import annotations

import pytest

from clusterbroker.broker.server.worker_addresses import Where, worker_addresses

PLAIN, TLS = ("amqp", "0.0.0.0:5672"), ("amqps", "0.0.0.0:5671")
HERE, HERE_TLS = ("amqp", "127.0.0.1:5672"), ("amqps", "127.0.0.1:5671")


@pytest.mark.parametrize(
    ("listeners", "advertised", "others", "wanted"),
    [
        ([PLAIN], [], [], [HERE]),
        ([("amqp", "[::]:5672")], [], [], [("amqp", "[::1]:5672")]),
        ([PLAIN, TLS], [], [], [HERE, HERE_TLS]),
        ([TLS], ["amqps://n1:5671"], [], [("amqps", "n1:5671"), HERE_TLS]),
        (
            [PLAIN, TLS],
            ["amqp://n1:5672", "amqps://n1:5671"],
            [["amqp://n2:5672", "amqps://n2:5671"], ["amqp://n3:5672"]],
            [HERE, ("amqps", "n1:5671"), HERE_TLS, ("amqps", "n2:5671"), ("amqp", "n3:5672")],
        ),
        ([("amqp", "10.0.0.1:5672"), TLS], ["amqps://n1:5671"], [], [("amqps", "n1:5671"), HERE_TLS]),
        ([PLAIN, TLS], ["amqp://n1:5672"], [], [HERE, HERE_TLS, ("amqp", "n1:5672")]),
        ([PLAIN], ["amqp://0.0.0.0:5672", "http://n1:80", "amqp://127.0.0.1:5672"], [], [HERE]),
        ([("amqp", "localhost:1"), TLS], [], [["amqps://a:1"]], [("amqp", "localhost:1"), HERE_TLS, ("amqps", "a:1")]),
    ],
    ids=[
        "plain", "six", "both", "tls", "cluster", "no plain one beside TLS", "advertised plain by its operator",
        "what is no address of a worker", "localhost",
    ],
)  # fmt: skip
def test_addresses_of_workers(
    listeners: list[Where], advertised: list[str], others: list[list[str]], wanted: list[Where]
) -> None:
    assert worker_addresses(listeners, advertised, others) == wanted
