"""What a trial of an import says on the command line."""

from __future__ import annotations

from clusterbroker.broker.cli.definitions import _told


def test_a_trial_is_told_with_names() -> None:
    nothing = {"new": 0, "changed": 0, "same": 3, "names": {"new": [], "changed": []}}
    assert _told({"users": nothing}) == "nothing would change; nothing was done"
    queues = {"new": 3, "changed": 0, "same": 0, "names": {"new": ["a in /", "b in /"], "changed": []}}
    policies = {"new": 0, "changed": 1, "same": 0, "names": {"new": [], "changed": ["p in /"]}}
    assert _told({"queues": queues, "operator_policies": policies}) == (
        "3 new queues, 1 changed operator policies; nothing was done\n"
        "new queues: a in /, b in /, ...\n"
        "changed operator policies: p in /"
    )
