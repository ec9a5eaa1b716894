"""Which policy applies, and what is refused."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import LOCAL_NODE, QueueId
from clusterbroker.cluster.wiring.entities import Exchange, OperatorPolicy, Policy, Queue
from clusterbroker.cluster.wiring.patterns import matches
from clusterbroker.cluster.wiring.policies import PolicyTable, check_policy


def queue(name: str, **arguments: Any) -> Queue:
    return Queue("/", name, QueueId(1), True, False, None, arguments, LOCAL_NODE)


def policy(name: str, pattern: str = "", **fields: Any) -> Policy:
    return Policy("/", name, pattern, {"max-length": 5, **fields.pop("also", {})}, **fields)


def applied(table: PolicyTable, entry: Queue) -> str | None:
    return table.queue_settings(entry).policy


def test_highest_priority_then_name() -> None:
    table = PolicyTable()
    table.put(policy("b", "^q"))
    table.put(policy("a", "^q"))
    table.put(policy("c", "^q1", priority=5))
    assert applied(table, queue("q1")) == "c"
    assert applied(table, queue("q2")) == "a"
    assert applied(table, queue("other")) is None
    assert table.delete("c", operator=False)
    assert not table.delete("c", operator=False)
    assert applied(table, queue("q1")) == "a"


def test_apply_to() -> None:
    table = PolicyTable()
    table.put(policy("x", apply_to="exchanges", priority=9, also={"alternate-exchange": "ae"}))
    table.put(policy("s", apply_to="streams", priority=8))
    table.put(policy("u", apply_to="quorum_queues", priority=7))
    table.put(policy("c", apply_to="classic_queues", priority=6))
    assert applied(table, queue("q")) == "c"
    assert applied(table, queue("q", **{"x-queue-type": "quorum"})) == "u"
    assert table.exchange_settings(Exchange("/", "e", "fanout")).alternate_exchange == "ae"
    own = Exchange("/", "e", "fanout", arguments={"alternate-exchange": "own"})
    assert table.exchange_settings(own).alternate_exchange == "own"


def test_operator_policies_are_a_second_row() -> None:
    table = PolicyTable()
    table.put(policy("p"))
    table.put(OperatorPolicy("/", "o", "", {"max-length": 3}))
    settings = table.queue_settings(queue("q"))
    assert (settings.policy, settings.operator_policy, settings.max_length) == ("p", "o", 3)
    assert table.delete("o", operator=True)
    assert table.queue_settings(queue("q")).max_length == 5


def test_equal_queues_share_their_settings() -> None:
    table = PolicyTable()
    table.put(policy("p"))
    assert table.queue_settings(queue("a")) is table.queue_settings(queue("b"))
    assert table.queue_settings(queue("a", **{"x-max-length": 1})) is not table.queue_settings(queue("b"))


@pytest.mark.parametrize(
    "bad",
    [
        Policy("/", "p", "(", {"max-length": 1}),
        Policy("/", "p", "", {}),
        Policy("/", "p", "", {"max-length": -1}),
        Policy("/", "p", "", {"ha-mode": "all"}),
        Policy("/", "p", "", {"x-max-length": 1}),
        Policy("/", "p", "", {"alternate-exchange": 1}),
        Policy("/", "p", "", {"max-age": "an hour"}),
        OperatorPolicy("/", "p", "", {"alternate-exchange": "a"}),
    ],
)
def test_refused_policies(bad: Policy | OperatorPolicy) -> None:
    with pytest.raises(PreconditionFailed, match="policy 'p'"):
        check_policy(bad)


def test_accepted_policies() -> None:
    check_policy(Policy("/", "p", "", {"message-ttl": 0, "alternate-exchange": "a", "min-in-sync": 2}))
    check_policy(Policy("/", "p", r"^(?!amq\.).*", {"dead-letter-routing-key": "k"}))


def test_what_is_remembered_is_what_is_found_anew() -> None:
    """Policies come, change and go, patterns come back, queues and exchanges are asked for now and then."""
    chance = random.Random(7)
    table = PolicyTable()
    names = [f"{first}{second}" for first in "abc" for second in "abc"]
    patterns = ["^a", "b$", "c", "", "^(?!a)", "^[ab]+$"]
    queues = [queue(name, **arguments) for arguments in ({}, {"x-queue-type": "quorum"}) for name in names]
    queues = [replace(entry, queue_id=QueueId(number)) for number, entry in enumerate(queues)]
    for _ in range(600):
        name, limit = chance.choice("pqrs"), chance.randrange(9)
        fields: dict[str, Any] = {
            "pattern": chance.choice(patterns), "definition": {"max-length": limit}, "priority": chance.randrange(3),
            "apply_to": chance.choice(["all", "queues", "exchanges", "quorum_queues"]),
        }  # fmt: skip
        match chance.randrange(5):
            case 0 | 1:
                table.put(Policy("/", name, **fields))
            case 2:
                table.delete(name, operator=False)
            case 3:
                table.put(OperatorPolicy("/", name, **{**fields, "apply_to": "queues"}))
            case 4:
                table.delete(name, operator=True)
        anew = PolicyTable()
        for present in table.policies():
            anew.put(present)
        for operator in table.operator_policies():
            anew.put(operator)
        for entry in chance.sample(queues, 3):
            assert table.queue_settings(entry) == anew.queue_settings(entry)
            if not chance.randrange(8):
                table.forget(entry)
        exchange = Exchange("/", chance.choice(names), "fanout")
        assert table.exchange_settings(exchange) == anew.exchange_settings(exchange)


def test_a_name_and_a_pattern_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(pattern: str, name: str) -> bool:
        compared.append((pattern, name))
        return matches(pattern, name)

    monkeypatch.setattr("clusterbroker.cluster.wiring.policies.matches", counted)
    table = PolicyTable()
    for number in range(20):
        table.put(policy(f"p{number}", f"^{number}$"))
    entry = queue("q")
    assert applied(table, entry) is None
    assert len(compared) == 20
    table.put(policy("q", "q", priority=1))
    assert applied(table, entry) == "q"
    assert table.exchange_settings(Exchange("/", "q", "fanout")).policy == "q"
    assert compared[20:] == [("q", "q")]
    table.delete("q", operator=False)
    assert applied(table, entry) is None
    assert len(compared) == 21
