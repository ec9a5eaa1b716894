"""What a node calls itself to clients of AMQP 1.0 (`amqp10.product`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterbroker.broker.config import ConfigError, load
from clusterbroker.broker.fronts.amqp10.opening import own
from clusterbroker.broker.version import VERSION
from tests.unit.broker.fronts.amqp091.harness import World


def test_it_says_what_it_is() -> None:
    properties = own(World().node, None, None).properties or {}
    assert (properties["product"], properties["version"]) == ("clusterbroker", VERSION)
    assert properties["node"] == "node"


def test_it_poses_as_rabbitmq_where_it_is_told_to(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[amqp10]\nproduct = "RabbitMQ"\n')
    options = load(file).options().node
    properties = own(World(amqp10_product=options.amqp10_product).node, None, None).properties or {}
    assert properties["product"] == "RabbitMQ"
    assert int(properties["version"].partition(".")[0]) >= 4


def test_it_poses_as_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[amqp10]\nproduct = "ActiveMQ"\n')
    with pytest.raises(ConfigError, match="product"):
        load(file)
