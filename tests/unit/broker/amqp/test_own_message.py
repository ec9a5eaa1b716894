from __future__ import annotations

import pytest

from clusterbroker.broker.amqp import properties as codec
from clusterbroker.broker.amqp.own_message import own_message

HEADER = codec.encode(codec.Properties(content_type="application/json"))


def test_it_has_its_address_and_content() -> None:
    made = own_message("events", "na\udcffme", HEADER, b"{}", 7)
    assert (made.exchange, made.routing_key, made.body, made.time_ms) == (b"events", b"na\xffme", b"{}", 7)
    assert codec.decode(made.header).content_type == "application/json"


def test_a_name_that_is_too_long_is_no_address() -> None:
    with pytest.raises(ValueError, match="shortstr"):
        own_message("", "q" * 256, HEADER, b"", 0)
