"""A link leads to the Raft id that introduced itself over it, and to no earlier one of that name."""

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.raft.links import Links

A, B = NodeId("a"), NodeId("b")


def test_a_link_leads_to_whom_introduced_itself_over_it() -> None:
    links = Links()
    links.open(B)
    links.open(A)
    assert (links.peers(), links.raft_ids()) == ([A, B], [])
    assert links.introduced(B, "b/disk")
    assert not links.introduced(B, "b/other"), "the first introduction counts"
    assert links.reach("b/disk")
    assert not links.reach("b/other")
    assert not links.reach("a/disk")
    assert links.raft_ids() == ["b/disk"]


def test_what_was_sent_before_a_new_link_may_be_lost() -> None:
    links = Links()
    links.open(A)
    links.introduced(A, "a/1")
    made = links.made
    assert links.close(A) == "a/1"
    assert A not in links
    assert not links.reach("a/1")
    assert links.close(A) is None
    links.open(A)
    assert links.made > made
