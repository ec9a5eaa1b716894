"""Beats run on uvloop, as in the node and as the tests of links do."""

from tests.unit.cluster.link.conftest import event_loop_policy, pytest_collection_modifyitems

__all__ = ["event_loop_policy", "pytest_collection_modifyitems"]
