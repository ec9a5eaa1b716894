"""The fold over random logs: equal logs give equal digests, a snapshot and the tail are the whole log, invariants hold.

Names are few, so that commands meet: declares hit what exists, deletes hit what was declared, cascades happen.
"""

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.errors import WiringError
from clusterbroker.cluster.ids import LOCAL_NODE, Epoch, LogIndex, QueueId
from clusterbroker.cluster.wiring import cascade, snapshot
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Binding, UserLimits
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.budget import examples

VHOSTS = st.sampled_from(["/", "v"])
QUEUES = st.sampled_from(["q1", "q2", "q3", "amq.q", ""])
EXCHANGES = st.sampled_from(["x1", "x2", "x3", "amq.topic", "", "amq.new"])
CONNECTIONS = st.sampled_from(["c1", "c2", None])
KEYS = st.sampled_from(["", "a", "a.#", "5"])
KINDS: Any = st.sampled_from(["queue", "exchange"])
USERS = st.sampled_from(["u1", "u2"])
PATTERNS = st.sampled_from(["", ".*", "^q", "(", r"^(?!amq\.).*"])
ARGUMENTS = st.dictionaries(
    st.sampled_from(["x-max-length", "x-match", "alternate-exchange", "x-queue-type", "x-expires", "other"]),
    st.sampled_from([1, True, 0, "all", "classic", "quorum", 1.0, None, b"all", [1], {"a": 1}]),
    max_size=2,
)
DEFINITIONS = st.sampled_from([{"max-length": 3}, {"expires": 5, "overflow": "drop-head"}, {}, {"no": 1}])
FLAGS = st.booleans()


@st.composite
def declare_queue(draw: st.DrawFn) -> c.DeclareQueue:
    connection = draw(CONNECTIONS)
    return c.DeclareQueue(
        vhost=draw(VHOSTS),
        name=draw(QUEUES),
        durable=draw(FLAGS),
        auto_delete=draw(FLAGS),
        exclusive=draw(FLAGS) and connection is not None,
        arguments=draw(ARGUMENTS),
        connection=connection,
        server_named=draw(FLAGS),
    )


def binding(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        kind,
        vhost=VHOSTS,
        source=EXCHANGES,
        destination=st.one_of(QUEUES, EXCHANGES),
        destination_kind=KINDS,
        routing_key=KEYS,
        arguments=ARGUMENTS,
        connection=CONNECTIONS,
    )


COMMANDS: st.SearchStrategy[c.AnyCommand] = st.one_of(
    declare_queue(),
    declare_queue(),
    binding(c.Bind),
    binding(c.Bind),
    binding(c.Unbind),
    st.builds(
        c.DeclareExchange,
        vhost=VHOSTS,
        name=EXCHANGES,
        type=st.sampled_from(["direct", "topic", "headers", "x-consistent-hash", "nope"]),
        durable=FLAGS,
        auto_delete=FLAGS,
        internal=FLAGS,
        arguments=ARGUMENTS,
    ),
    st.builds(
        c.DeleteQueue,
        vhost=VHOSTS,
        name=QUEUES,
        queue_id=st.integers(1, 40).map(QueueId),
        epoch=st.integers(0, 2).map(Epoch),
    ),
    st.builds(c.PauseQueue, vhost=VHOSTS, name=QUEUES, paused=FLAGS),
    st.builds(c.DeleteExchange, vhost=VHOSTS, name=EXCHANGES, if_unused=FLAGS),
    st.builds(c.RemoveConnection, connection=st.sampled_from(["c1", "c2"])),
    st.builds(c.ForgetTransient, node=st.just(LOCAL_NODE), alone=FLAGS),
    st.builds(
        c.AddVhost,
        name=VHOSTS,
        default_queue_type=st.sampled_from([None, "quorum", "stream"]),
        tracing=st.sampled_from([None, True, False]),
    ),
    st.builds(c.DeleteVhost, name=VHOSTS),
    st.builds(
        c.PutUser,
        name=USERS,
        password_hash=KEYS,
        hash_algorithm=st.just("scrypt"),
        tags=st.sampled_from([(), ("monitoring",)]),
        only_if_hash=st.one_of(st.none(), KEYS),
    ),
    st.builds(
        c.PutUser,
        name=USERS,
        tags=st.sampled_from([(), ("monitoring",)]),
        limits=st.just(None),
        only=st.sampled_from([("tags",), ("password_hash", "hash_algorithm"), ("nonsense",)]),
    ),
    st.builds(
        c.SetUserLimits,
        name=USERS,
        limits=st.builds(UserLimits, st.sampled_from([None, -1, 2]), st.sampled_from([None, 3])),
        only=st.sampled_from([(), ("connections_max",), ("channels_max",)]),
    ),
    st.builds(c.DeleteUser, name=USERS),
    st.builds(c.SetPermission, user=USERS, vhost=VHOSTS, configure=PATTERNS, write=PATTERNS, read=PATTERNS),
    st.builds(c.ClearPermission, user=USERS, vhost=VHOSTS),
    st.builds(c.SetTopicPermission, user=USERS, vhost=VHOSTS, exchange=EXCHANGES, write=PATTERNS, read=PATTERNS),
    st.builds(c.ClearTopicPermission, user=USERS, vhost=VHOSTS, exchange=st.one_of(st.none(), EXCHANGES)),
    st.builds(
        c.PutPolicy,
        vhost=VHOSTS,
        name=USERS,
        pattern=PATTERNS,
        definition=DEFINITIONS,
        priority=st.integers(0, 2),
    ),
    st.builds(c.DeletePolicy, vhost=VHOSTS, name=USERS),
    st.builds(c.PutOperatorPolicy, vhost=VHOSTS, name=USERS, pattern=PATTERNS, definition=DEFINITIONS),
    st.builds(c.DeleteOperatorPolicy, vhost=VHOSTS, name=USERS),
    st.builds(
        c.PutParameter,
        vhost=st.one_of(VHOSTS, st.just("")),
        component=st.just("c"),
        name=USERS,
        value=st.sampled_from([1, True, 1.0, {"a": 1}, {"a": True}]),
    ),
    st.builds(c.DeleteParameter, vhost=st.one_of(VHOSTS, st.just("")), component=st.just("c"), name=USERS),
    st.builds(
        c.SetVhostLimits,
        vhost=VHOSTS,
        queues_max=st.sampled_from([None, -1, 0, 2]),
        bindings_max=st.sampled_from([None, -1, 0, 2]),
        exchange_bindings_max=st.sampled_from([None, -1, 0, 1]),
        policies_max=st.sampled_from([None, -1, 0, 1]),
        parameters_max=st.sampled_from([None, 0, 1]),
        only=st.sampled_from([(), ("queues_max",), ("connections_max",), ("bindings_max", "exchange_bindings_max")]),
    ),
    st.builds(c.ClearVhostLimits, vhost=VHOSTS),
)
LOGS = st.lists(COMMANDS, max_size=40)


def fold(commands: list[c.AnyCommand], map_: ClusterMap | None = None) -> tuple[ClusterMap, list[Any]]:
    map_ = map_ if map_ is not None else ClusterMap()
    outcomes = [map_.apply(LogIndex(map_.applied + 1), command) for command in commands]
    return map_, outcomes


def through_bytes(map_: ClusterMap) -> ClusterMap:
    taken = map_.snapshot()
    return ClusterMap.restored(snapshot.decode(taken.index, list(snapshot.encode(taken))))


@given(LOGS)
@example([c.DeclareQueue(vhost="/", name="q1"), c.PauseQueue(vhost="/", name="q1", paused=False)])
@settings(max_examples=examples(300), deadline=None)
def test_a_refusal_changes_nothing_and_every_change_is_told(commands: list[c.AnyCommand]) -> None:
    map_ = ClusterMap()
    digest = map_.digest()
    for command in commands:
        applied = map_.apply(LogIndex(map_.applied + 1), command)
        now = map_.digest()
        assert applied.changes if now != digest else not applied.changes or resumes(command)
        assert applied.ok or isinstance(applied.error, WiringError)
        digest = now
        assert_invariants(map_)


def resumes(command: c.AnyCommand) -> bool:
    """Its owner may have set the queue aside without being able to say so in the log: it is told to go on."""
    return isinstance(command, c.PauseQueue) and not command.paused


def assert_invariants(map_: ClusterMap) -> None:
    queues = {queue.queue_id: queue for queue in map_.queues()}
    assert len(queues) == sum(len(map_.queues(vhost.name)) for vhost in map_.vhosts())
    assert all(map_.queue_by_id(queue_id) is queue for queue_id, queue in queues.items())
    owned = {q.queue_id for name in ("c1", "c2") for q in map_.exclusive_queues(name)}
    assert owned == {q.queue_id for q in queues.values() if q.exclusive_owner is not None}
    for vhost in map_.vhosts():
        everything = map_.bindings(vhost.name)
        for entry in everything:
            assert map_.exchange(vhost.name, entry.source) is not None
            end = map_.queue if entry.destination_kind == "queue" else map_.exchange
            assert end(vhost.name, entry.destination) is not None
        for source in {entry.source for entry in everything}:
            assert map_.bindings_from(vhost.name, source) == _those(everything, source=source)
            for key in {entry.routing_key for entry in everything}:
                expected = _those(everything, source=source, routing_key=key)
                assert map_.bindings_from(vhost.name, source, key) == expected
        for entry in everything:
            expected = _those(everything, destination=entry.destination, destination_kind=entry.destination_kind)
            assert map_.bindings_to(vhost.name, entry.destination_kind, entry.destination) == expected


def _those(bindings: tuple[Binding, ...], **fields: str) -> tuple[Binding, ...]:
    return tuple(b for b in bindings if all(getattr(b, name) == value for name, value in fields.items()))


@given(LOGS, LOGS)
@settings(max_examples=examples(200), deadline=None)
def test_snapshot_and_tail_are_the_whole_log(head: list[c.AnyCommand], tail: list[c.AnyCommand]) -> None:
    whole, _ = fold(head)
    restored = through_bytes(whole)
    assert restored.digest() == whole.digest()
    whole, expected = fold(tail, whole)
    restored, outcomes = fold(tail, restored)
    assert restored.digest() == whole.digest()
    assert outcomes == expected, "answers and changes too, in the same order"
    assert_invariants(restored)


@given(LOGS)
@settings(max_examples=examples(100), deadline=None)
def test_stored_commands_fold_to_the_same(commands: list[c.AnyCommand]) -> None:
    direct, _ = fold(commands)
    stored, _ = fold([c.decode(c.encode(command)) for command in commands])
    assert direct.digest() == stored.digest()


WIRED = [
    *(c.DeclareExchange(vhost="/", name=f"x{n}", type="fanout", auto_delete=n > 1) for n in (1, 2, 3)),
    *(c.DeclareQueue(vhost="/", name=f"q{n}", exclusive=n == 3, connection="c1") for n in (1, 2, 3)),
]
ARROWS = st.builds(
    c.Bind,
    vhost=st.just("/"),
    source=st.sampled_from(["x1", "x2", "x3", "amq.topic"]),
    destination=st.sampled_from(["q1", "q2", "q3", "x1", "x2", "x3"]),
    routing_key=st.sampled_from(["", "a"]),
    connection=st.just("c1"),
).map(
    lambda bind: msgspec.structs.replace(bind, destination_kind="queue" if bind.destination[0] == "q" else "exchange")
)
ENDINGS = st.one_of(
    st.builds(c.DeleteExchange, vhost=st.just("/"), name=st.sampled_from(["x1", "x3", "amq.topic"]), if_unused=FLAGS),
    st.builds(
        c.DeleteQueue,
        vhost=st.just("/"),
        name=st.just("q"),
        queue_id=st.sampled_from([QueueId(4), QueueId(5), QueueId(9)]),
        epoch=st.sampled_from([Epoch(0), Epoch(1), Epoch(2)]),
    ),
    st.builds(c.RemoveConnection, connection=st.just("c1")),
    st.builds(c.DeleteVhost, name=st.sampled_from(["/", "/", "none"])),
    ARROWS.map(lambda bind: c.Unbind(**{name: getattr(bind, name) for name in c.Unbind.__struct_fields__})),
)


CIRCLE = [c.Bind(vhost="/", source=a, destination=b, destination_kind="exchange", connection="c1")
          for a, b in (("x1", "x2"), ("x2", "x3"), ("x3", "x2"))]  # fmt: skip


@given(st.lists(ARROWS, max_size=12), ENDINGS)
@example(CIRCLE, c.DeleteExchange(vhost="/", name="x3"))
@settings(max_examples=examples(300), deadline=None)
def test_what_ends_in_pieces_ends_as_at_once(arrows: list[c.Bind], ending: c.Ending) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cascade, "PIECE", 15)
        at_once, _ = fold([*WIRED, *arrows])
        in_pieces, _ = fold([*WIRED, *arrows])
        index = int(at_once.applied)
        expected = at_once.apply(LogIndex(index + 100), ending)
        pieces = 0
        while in_pieces.in_pieces(ending):
            index, pieces = index + 1, pieces + 1
            applied = in_pieces.apply(LogIndex(index), c.Loosen(ending=ending))
            assert applied.ok
            assert applied.changes
        applied = in_pieces.apply(LogIndex(at_once.applied), ending)
        assert (applied.ok, applied.result) == (expected.ok, expected.result)
        assert in_pieces.digest() == at_once.digest()
        assert_invariants(in_pieces)
        entities = len(WIRED) if isinstance(ending, c.DeleteVhost) else 0
        assert pieces <= len(arrows) + entities
        assert expected.ok or not pieces, "what is refused changes nothing"


SCRIPT = """
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
m = ClusterMap(); i = 0
def do(command):
    global i
    i += 1
    a = m.apply(i, command)
    print(a.error, a.changes)
for n in range(30):
    do(c.DeclareExchange(vhost="/", name=f"x{n}", type="topic", auto_delete=n % 2 == 0, durable=n % 3 == 0))
    do(c.DeclareQueue(vhost="/", name=f"q{n}", durable=n % 2 == 0, arguments={f"a{k}": k for k in range(n % 5)}))
    do(c.PutUser(name=f"u{n}", password_hash="", hash_algorithm="scrypt"))
    do(c.SetPermission(user=f"u{n}", vhost="/", configure="", write="", read=""))
    do(c.SetTopicPermission(user=f"u{n}", vhost="/", exchange="x1", write="", read=""))
for n in range(60):
    do(c.Bind(vhost="/", source=f"x{n % 30}", destination=f"q{n * 7 % 30}", routing_key=str(n)))
    do(c.Bind(vhost="/", source=f"x{n % 30}", destination=f"x{n * 11 % 30}", destination_kind="exchange"))
do(c.DeleteUser(name="u3"))
do(c.ForgetTransient(node="local"))
do(c.DeleteVhost(name="/"))
print(m.digest())
"""


def test_the_order_of_hashes_reaches_no_output() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
            cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
