"""What every client of AMQP 1.0 is tried with: queues that pika declared, and messages from pika and for it.

A client's program knows their names from its environment:

    AMQP_URL    with user and password
    PLAIN       a durable queue
    REJECTING   a durable queue whose dead letters go to DEAD
    ODD         a queue whose name needs percent-encoding
    FROM_PIKA   has one message, `PROPERTIES` with body "from pika"
    TO_PIKA     gets one message from the program: body "to pika", durable, priority 6, content-type
                application/octet-stream, correlation-id "c-1", reply-to /queues/answers, application properties
                text "ü", n 7, yes true
    MISSING     is no queue's name

It leaves all but TO_PIKA empty, exits with 0, and says how many checks held.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pika

from .toolchains import called

PROPERTIES = pika.BasicProperties(
    content_type="text/plain",
    delivery_mode=2,
    priority=7,
    correlation_id="c-0",
    reply_to="answers",
    message_id="m-0",
    timestamp=1700000000,
    app_id="pika",
    expiration="600000",
    headers={"text": "ü", "n": 7, "big": 2**40, "yes": True},
)


class Queues:
    """Declared for one program."""

    def __init__(self, url: str, name: Callable[[str], str]) -> None:
        stems = {"PLAIN": "plain", "REJECTING": "rejecting", "DEAD": "dead", "ODD": "ö /?#%25+&::", "FROM_PIKA": "from",
                 "TO_PIKA": "to", "MISSING": "missing"}  # fmt: skip
        self.names = {key: name(f"amqp10-{stem}") for key, stem in stems.items()}
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for key, queue in self.names.items():
                if key != "MISSING":
                    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.names["DEAD"]}
                    channel.queue_declare(queue, durable=True, arguments=arguments if key == "REJECTING" else None)
            channel.basic_publish("", self.names["FROM_PIKA"], b"from pika", PROPERTIES, mandatory=True)

    def exercise(self, command: list[str], directory: Path, url: str, **environment: str) -> None:
        """Runs a program, and looks at what it left."""
        code, said = called(command, directory, 60, AMQP_URL=url, **self.names, **environment)
        assert code == 0, said
        print(said)
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            method, properties, body = channel.basic_get(self.names["TO_PIKA"], auto_ack=True)
            assert method is not None, "the program left a message for pika"
            assert body == b"to pika"
            assert (properties.delivery_mode, properties.priority) == (2, 6)
            assert (properties.correlation_id, properties.reply_to) == ("c-1", "answers")
            assert properties.content_type == "application/octet-stream"
            headers = properties.headers
            assert {key: headers.get(key) for key in ("text", "n", "yes")} == {"text": "ü", "n": 7, "yes": True}
            for key, queue in self.names.items():
                if key != "MISSING":
                    assert channel.queue_delete(queue).method.message_count == 0, key
