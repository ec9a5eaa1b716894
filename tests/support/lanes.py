"""Which process runs what, when a run has several (`scripts/test`).

One worker begins with what computes (units, properties, campaigns), the others with what waits for processes (faults,
conformance, interop, browser, Spark); who is done with its lane helps in the other. What is one unit shares fixtures
that take long to make: a file, or more.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

WAITING: Final = (
    "tests/spark", "tests/browser", "tests/faults", "tests/conformance", "tests/interop", "tests/fuzz",
    "tests/pages",
)  # fmt: skip
SLOW: Final = (
    "tests/spark", "tests/faults/test_membership.py", "tests/conformance[cluster", "tests/conformance[node",
    "tests/conformance[three nodes",
    "tests/interop/test_celery.py", "tests/faults", "tests/interop", "tests/browser",
    "tests/property/test_replication_world.py", "tests/simulation", "tests/property",
)  # fmt: skip
"""What takes longest begins first; the rest follows, the more tests the earlier."""


def unit_of(test: str) -> str:
    """What goes to the same worker, by a test's id."""
    path, _, name = test.partition("::")
    if path.startswith("tests/spark/"):
        return "tests/spark"  # one session
    if path.startswith("tests/conformance/"):
        _, bracket, parameter = name.partition("[")
        return "tests/conformance" + bracket + parameter.partition("-")[0].rstrip("]")  # one broker
    if path.startswith("tests/pages/"):
        return test  # each page has a broker of its own
    if path.startswith("tests/unit/broker/foreman/"):
        return "tests/unit/broker/foreman"  # one place, whose foremen would end each other's workers
    return path


def order(unit: str, count: int) -> tuple[int, int]:
    """The key by which units are sorted."""
    return next((place for place, start in enumerate(SLOW) if unit.startswith(start)), len(SLOW)), -count


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def schedule(self) -> None:
        self.config.option.loadscopereorder = False
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = node.gateway.id != "gw0"

        def key(unit: str) -> tuple[bool, tuple[int, int]]:
            return unit.startswith(WAITING) != waits, order(unit, len(self.workqueue[unit]))

        self.workqueue.move_to_end(min(self.workqueue, key=key), last=False)
        super()._assign_work_unit(node)
