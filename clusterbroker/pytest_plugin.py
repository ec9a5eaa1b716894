"""pytest fixtures: a real broker in your tests, without a container and without mocks.

    def test_orders(clusterbroker):
        connection = pika.BlockingConnection(pika.URLParameters(clusterbroker.url))

`clusterbroker` is a fresh broker for each test: it starts in well under 100 ms, and nothing is left over from the
test before. `clusterbroker_session` is one broker for the whole session, for suites that clean up themselves or give
each test names of its own. Both are `broker.embedded.Broker`.

What a broker is made with (worker pools, definitions, limits) is in the fixture `clusterbroker_options`, a mapping of
keyword arguments of `Broker` that a suite may replace by its own, or in the mark of a test, a class or a module:

    @pytest.mark.clusterbroker(pools={"core": Core})

Nothing of the broker is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from clusterbroker.broker.embedded import Broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "clusterbroker(**arguments): what the broker of this test is made with, as pools={...}"
    )


@pytest.fixture(scope="session")
def clusterbroker_options() -> Mapping[str, Any]:
    """Keyword arguments of `Broker`, for both fixtures. Replace it in a conftest.py."""
    return {}


@pytest.fixture
def clusterbroker(request: pytest.FixtureRequest, clusterbroker_options: Mapping[str, Any]) -> Iterator[Broker]:
    """A running broker, fresh and empty, for this test alone."""
    from clusterbroker.broker.embedded import Broker

    arguments = dict(clusterbroker_options)
    for mark in reversed([*request.node.iter_markers("clusterbroker")]):  # the nearest one has the last word
        if mark.args:
            raise pytest.UsageError("clusterbroker(...) takes keyword arguments of Broker, as pools={...}")
        arguments |= mark.kwargs
    with Broker(**arguments) as running:
        yield running


@pytest.fixture(scope="session")
def clusterbroker_session(clusterbroker_options: Mapping[str, Any]) -> Iterator[Broker]:
    """A running broker, the same for all tests of the session."""
    from clusterbroker.broker.embedded import Broker

    with Broker(**clusterbroker_options) as running:
        yield running
