"""Recoverable links over random logs: against a plain model, and through snapshots."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.errors import WiringError
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.budget import examples
from tests.unit.cluster.cluster_world import ClusterWorld

NODES = ("a", "b", "c")
STEPS = st.one_of(
    st.tuples(
        st.just("attach"), st.sampled_from(NODES), st.sampled_from("lm"), st.sampled_from("uw"), st.sampled_from("st"),
        st.booleans(),
    ),
    st.tuples(st.sampled_from(("suspend", "expire", "forget")), st.integers(0, 3), st.integers(-1, 0)),
    st.tuples(st.sampled_from(("fail", "register")), st.sampled_from(NODES)),
    st.tuples(st.just("delete user"), st.sampled_from("uw")),
)  # fmt: skip


class Model:
    """name -> [link, attach, user, terminus, node or None]"""

    def __init__(self) -> None:
        self.links: dict[str, list[Any]] = {}
        self.alive = set(NODES)

    def attach(self, index: int, node: str, name: str, user: str, terminus: str, resumes: bool) -> bool:
        known = self.links.get(name)
        if node not in self.alive or (known is None and resumes) or (known is not None and known[2] != user):
            return False
        if known is not None and known[3] != terminus:
            if resumes:
                return False
            del self.links[name]
        link = self.links.setdefault(name, [index, 0, user, terminus, node])
        link[1] += 1
        link[4] = node
        return True

    def over(self, node: str) -> None:
        for link in self.links.values():
            link[4] = None if link[4] == node else link[4]


@settings(max_examples=examples(150))
@given(st.lists(STEPS, max_size=40))
def test_the_map_is_as_the_model(steps: list[tuple[Any, ...]]) -> None:
    world, model = ClusterWorld(), Model()
    for user in "uw":
        world.do(c.PutUser(name=user))
    for step in steps:
        ids = sorted(model.links)
        match step:
            case ("attach", node, name, user, terminus, resumes):
                expected = model.attach(world.map.applied + 1, node, name, user, terminus, resumes)
                command = c.AttachLink(
                    node=NodeId(node), incarnation=world.member(node).incarnation, vhost="/", container="c",
                    name=name, role="sender", terminus=terminus, user=user, resumes=resumes,
                )  # fmt: skip
                try:
                    result = world.do(command)
                except WiringError:
                    assert not expected
                else:
                    assert expected
                    assert [result.link, result.attach] == model.links[name][:2]
            case (kind, place, off) if kind in ("suspend", "expire", "forget"):
                if not ids:
                    continue
                name = ids[place % len(ids)]
                link, attach, *_, node = model.links[name]
                ends = off == 0 and (kind == "forget" or (kind == "suspend") is (node is not None))
                kinds = {"suspend": c.SuspendLink, "expire": c.ExpireLink, "forget": c.ForgetLink}
                assert world.do(kinds[kind](link=LogIndex(link), attach=attach + off)) is ends
                if ends and kind == "suspend":
                    model.links[name][4] = None
                elif ends:
                    del model.links[name]
            case ("fail", node):
                world.fail(node)
                model.alive.discard(node)
                model.over(node)
            case ("register", node):
                world.register(node)
                model.alive.add(node)
                model.over(node)
            case (_, user):
                if world.do(c.DeleteUser(name=user)):
                    model.links = {name: link for name, link in model.links.items() if link[2] != user}
        found = {
            link.name: [link.link, link.attach, link.user, link.terminus, None if link.suspended else link.node]
            for link in world.map.links()
        }
        assert found == model.links
        assert world.restored().digest() == world.map.digest()
