"""What alerts advise is done at a node that has no management API: resume a queue, delete single messages."""

from __future__ import annotations

from collections.abc import Callable

import pika

from clusterbroker.broker.cli.exit_codes import FAILED, UNREACHABLE
from tests.faults.node import NodeProcess, command

WRONG = (
    (("resume", "none"), "there is no queue 'none' in vhost '/'"),
    (("resume", "bad", "--staged"), "there are no staged rows of 'bad' in vhost '/'"),
    (("pause", "bad", "--vhost", "v"), "there is no queue 'bad' in vhost 'v'"),
    (("delete-messages", "none", "--seq", "1"), "there is no queue 'none' in vhost '/'"),
    (("delete-messages", "bad", "--seq", str(2**70)), "no request about messages: "),
    (("delete-messages", "bad", "--only", "nonsense"), "nonsense"),
)


def left(node: NodeProcess) -> list[bytes]:
    """What a client gets, until it gets nothing; it goes back."""
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        found: list[bytes] = []
        while (got := channel.basic_get("bad"))[0] is not None:
            found.append(got[2])
        return found


def test_a_queue_is_resumed_and_loses_messages_by_number(make_node: Callable[..., NodeProcess]) -> None:
    """`queues resume`, which the alert of a queue that is set aside names, ended with exit code 3."""
    node = make_node().start()

    def queues(*words: str) -> tuple[int, str]:
        return command("queues", *words, "--data-dir", str(node.data_dir))

    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("bad", durable=True)
        for body in (b"1", b"2", b"3"):
            channel.basic_publish("", "bad", body)
    assert queues("pause", "bad") == (0, "queue 'bad' is paused\n")
    assert left(node) == []
    assert queues("resume", "bad") == (0, "queue 'bad' delivers again\n")
    assert left(node) == [b"1", b"2", b"3"]
    assert queues("delete-messages", "bad", "--seq", "2") == (0, "1 deleted\n")
    code, said = queues("delete-messages", "bad", "--seq", "2")
    assert (code, "1 gone" in said) == (FAILED, True), said
    assert queues("delete-messages", "bad", "--only", "payload~3") == (0, "1 deleted\n")
    assert left(node) == [b"1"]
    for words, why in WRONG:
        code, said = queues(*words)
        assert (code, said.count("\n"), why in said) == (FAILED, 1, True), said
        assert said.startswith("clusterbroker: ")
    node.stop()
    assert queues("resume", "bad") == (UNREACHABLE, f"clusterbroker: no node runs in {node.data_dir}\n")
