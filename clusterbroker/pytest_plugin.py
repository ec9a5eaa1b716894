"""pytest fixtures: a real broker in your tests, without a container and without mocks.

    def test_orders(clusterbroker):
        connection = pika.BlockingConnection(pika.URLParameters(clusterbroker.url))

`clusterbroker` is a fresh broker for each test: it starts in well under 100 ms, and nothing is left over from the
test before. `clusterbroker_session` is one broker for the whole session, for suites that clean up themselves or give
each test names of its own. Both are `broker.embedded.Broker`.

Nothing of the broker is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from clusterbroker.broker.embedded import Broker


@pytest.fixture
def clusterbroker() -> Iterator[Broker]:
    """A running broker, fresh and empty, for this test alone."""
    from clusterbroker.broker.embedded import Broker

    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def clusterbroker_session() -> Iterator[Broker]:
    """A running broker, the same for all tests of the session."""
    from clusterbroker.broker.embedded import Broker

    with Broker() as running:
        yield running
