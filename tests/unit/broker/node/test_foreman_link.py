"""What a foreman knows of the map follows from differences: it is what the node knows, whenever either began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.foreman import frames
from clusterbroker.broker.foreman.drivers.port import Place
from clusterbroker.broker.foreman.foreman import Foreman
from clusterbroker.broker.foreman.frames import LaunchRow
from clusterbroker.broker.foreman.reconcile import Seen, State, View
from clusterbroker.broker.foreman.spec import WorkerSpec
from clusterbroker.broker.node.foreman_link import ForemanLink

IDS = tuple(f"w{number}-0" for number in range(6))
STATES = st.sampled_from(("wanted", "revoked"))
OWN = st.dictionaries(st.sampled_from(IDS[:3]), STATES)
OTHERS = st.dictionaries(st.sampled_from(IDS[3:]), STATES)
STEPS = st.one_of(st.just("attached"), st.just("detached"), st.tuples(OWN, st.none() | OTHERS))


def row(worker_id: str, state: str) -> LaunchRow:
    spec = WorkerSpec(
        worker_id=worker_id, pool="core", template="core", key="42", generation=1, version="v1", queue="q",
        activity_exchange="x",
    )  # fmt: skip
    return LaunchRow(spec=spec, state=state)


def begun() -> Foreman:
    return Foreman(Place("c", "a", {}), Path("/nonexistent"), {}, "file", lambda _frame: None, lambda *_, **__: None)


@given(st.lists(STEPS, max_size=12))
def test_a_foreman_knows_what_its_node_knows(steps: list[Any]) -> None:
    link, foreman, read = ForemanLink(), begun(), frames.Frames(frames.ToForeman)
    known: tuple[dict[str, str], dict[str, bool] | None] | None = None
    for index, step in enumerate(steps, 1):
        sent = b""
        if step == "attached":
            foreman, read = begun(), frames.Frames(frames.ToForeman)
            sent = link.attached()
        elif step == "detached":
            link.detached()
        else:
            own, others = step
            elsewhere = None if others is None else {one: state == "revoked" for one, state in others.items()}
            known = own, elsewhere
            sent = link.wants([row(*each) for each in own.items()], index, elsewhere)
        for frame in read.feed(sent):
            foreman.hear(frame)
        if link.attached_now and known is not None:
            assert {one: wanted.state.value for one, wanted in foreman.launches.items()} == known[0]
            assert foreman._elsewhere == known[1]


def test_a_launch_elsewhere_that_came_and_went_between_two_looks_is_over() -> None:
    link, foreman, read = ForemanLink(), begun(), frames.Frames(frames.ToForeman)

    def wants(index: int, elsewhere: dict[str, bool] | None) -> int:
        heard = [*read.feed(link.wants([], index, elsewhere))]
        for frame in heard:
            foreman.hear(frame)
        return len(heard)

    for frame in read.feed(link.attached()):
        foreman.hear(frame)
    wants(490, {})
    seen = Seen("w500-0", State.RUNNING, "c", "b")
    assert wants(520, {}) == 1
    assert View({}, True, None, foreman._elsewhere, foreman._index).is_over_elsewhere(seen)
    assert wants(520, {}) == 0, "nothing is new"
    assert [wants(530, None), wants(540, None)] == [1, 0], "of its own launches alone the index says nothing"
