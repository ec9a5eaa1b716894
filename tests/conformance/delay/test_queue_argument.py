"""A queue does not delay by an argument or policy of its own, and says so (decision 071)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..channel import Channel, ChannelClosed

Name = Callable[[str], str]


def test_the_argument_of_a_queue_is_refused_with_words(channel: Channel, name: Name) -> None:
    queue = name("q")
    with pytest.raises(ChannelClosed, match=r"406.*x-delivery-delay.*x-delayed-message"):
        channel.queue_declare(queue, durable=True, arguments={"x-delivery-delay": 1000})
