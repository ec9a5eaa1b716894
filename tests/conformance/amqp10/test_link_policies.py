"""What policies and arguments say of links that outlive their clients (`fronts.amqp10.link_policies`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Attach, Source, Target
from clusterbroker.broker.wire.amqp10.types import Symbol

from ..target import Target as Broker
from ..wire import Channel, eventually
from .conftest import Connect10
from .recovering import KEPT_S, RECOVERY, lasting_receiver, ready, suspend
from .test_links import fill
from .test_recoverable_senders import recoverable
from .wire import Session

Put = Callable[..., str]


@pytest.fixture
def put(target: Broker) -> Iterator[Put]:
    """Puts a policy in place of itself: for these names, with these keys."""
    made: list[tuple[str, str]] = []

    def put_one(pattern: str, definition: dict[str, Any], kind: str = "policies", **more: Any) -> str:
        name = f"links-{uuid.uuid4().hex}"
        made.append((kind, name))
        body = {"pattern": pattern, "definition": definition, **more}
        target.api("PUT", f"{kind}/%2F/{name}", body).raise_for_status()
        return name

    yield put_one
    for kind, name in made:
        target.api("DELETE", f"{kind}/%2F/{name}")


def declared(channel: Channel, **arguments: Any) -> str:
    wanted = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    return str(channel.queue_declare("", durable=True, arguments=wanted).queue)


def attached_as(session: Session, queue: str, wanted: Callable[[Attach], bool], **fields: Any) -> Attach:
    """The answer to an attach, once it is as wanted: a node hears of a policy when its map has it."""
    found: list[Attach] = []

    def there() -> bool:
        link = lasting_receiver(session, queue, name=uuid.uuid4().hex, **fields)
        found[:] = [link.attach]
        link.detach()
        return wanted(link.attach)

    eventually(there)
    return found[0]


def test_recovery_that_a_policy_refuses_is_not_offered(
    session: Session, connect10: Connect10, channel: Channel, put: Put, queue: str
) -> None:
    name = put(f"^{queue}$", {"link-recovery": False}, "operator-policies")
    attach = attached_as(session, queue, lambda known: RECOVERY not in (known.offered_capabilities or ()))
    assert attach.properties == {Symbol(RECOVERY): f"link-recovery is off: operator policy '{name}'"}
    assert isinstance(attach.source, Source)
    assert (attach.source.durable, attach.source.expiry_policy, attach.source.timeout) == (1, "session-end", 0)
    sender = recoverable(session, f"/queues/{queue}")
    assert RECOVERY not in (sender.attach.offered_capabilities or ())
    assert sender.attach.properties == attach.properties

    gone = connect10()
    fill(gone.session(), queue, 2)
    link = lasting_receiver(gone.session(), queue)
    link.grant(2)
    link.bodies(2)
    gone.close()
    ready(channel, queue, 2)


def test_within_its_session_a_link_is_resumed_all_the_same(session: Session, channel: Channel) -> None:
    queue = declared(channel, link_recovery=False)
    fill(session, queue, 1)
    link = lasting_receiver(session, queue)
    link.grant(1)
    tag = link.delivery().transfer.delivery_tag
    suspend(link)
    assert set(lasting_receiver(session, queue, {tag: None}).attach.unsettled or ()) == {tag}


def test_a_queue_wants_durable_links_to_be_recoverable(session: Session, channel: Channel) -> None:
    plain, queue = declared(channel), declared(channel, link_recovery=True)
    for name, offered in ((plain, None), (queue, (RECOVERY,))):
        target = Target(address=f"/queues/{name}", durable=2, timeout=KEPT_S)
        answer = session.sender(f"/queues/{name}", name=name, target=target).attach
        assert (answer.offered_capabilities or None) == offered
    target = Target(address=f"/queues/{queue}", durable=1, timeout=KEPT_S)
    assert not session.sender(f"/queues/{queue}", name="not durable", target=target).attach.offered_capabilities


@pytest.mark.parametrize(
    ("asked", "most_ms", "wanted"), [(60, 5000, ("link-detach", 5)), (3, 5000, ("link-detach", 3))]
)
def test_the_longest_expiry(
    session: Session, channel: Channel, asked: int, most_ms: int, wanted: tuple[str, int]
) -> None:
    queue = declared(channel, link_expiry_max=most_ms)
    attach = recoverable(session, f"/queues/{queue}", timeout=asked).attach
    assert isinstance(attach.target, Target)
    assert (attach.target.expiry_policy, attach.target.timeout) == wanted
    never = Target(address=f"/queues/{queue}", durable=2, expiry_policy="never")
    forever = session.sender(f"/queues/{queue}", name="n", target=never, desired_capabilities=(RECOVERY,)).attach
    assert isinstance(forever.target, Target)
    assert forever.target.timeout == 5, "an administrator's too"


def test_no_time_at_all_is_no_recovery(session: Session, channel: Channel) -> None:
    queue = declared(channel, link_expiry_max=999)
    attach = recoverable(session, f"/queues/{queue}").attach
    assert not attach.offered_capabilities


def test_one_link_more_than_there_may_be(session: Session, connect10: Connect10, channel: Channel) -> None:
    queue = declared(channel, recoverable_links_max=2)
    container = session.peer.container
    recoverable(session, f"/queues/{queue}", name="one")
    suspend(recoverable(session, queue, name="two"))
    text = f"'{queue}' has 2 recoverable links, and recoverable-links-max is 2: argument 'x-recoverable-links-max'"

    def is_refused() -> bool:  # once its node has heard of the others
        there = connect10(container=container).session()
        link = recoverable(there, f"/queues/{queue.replace('a', '%61')}", name="three", waits=False)
        if link.attach.target is not None:
            link.detach()
            return False
        link.detached("amqp:resource-limit-exceeded", text)
        return True

    eventually(is_refused)
    assert recoverable(connect10(container=container).session(), queue, name="two").attach.offered_capabilities
    lasting_receiver(session, queue, name="r").detached("amqp:resource-limit-exceeded")


def test_a_policy_of_an_exchange_is_for_those_who_send_to_it(session: Session, channel: Channel, put: Put) -> None:
    exchange = f"x-{uuid.uuid4().hex}"
    channel.exchange_declare(exchange, "direct")
    assert recoverable(session, f"/exchanges/{exchange}/k", name="before").attach.offered_capabilities == (RECOVERY,)
    put(f"^{exchange}$", {"link-recovery": False}, apply_to="exchanges")

    def is_refused() -> bool:
        link = recoverable(session, f"/exchanges/{exchange}/k", name=uuid.uuid4().hex)
        return not link.attach.offered_capabilities

    eventually(is_refused)


def test_a_bad_policy_is_refused(target: Broker) -> None:
    for kind in ("policies", "operator-policies"):
        body = {"pattern": "", "definition": {"link-recovery": "sometimes"}}
        answer = target.api("PUT", f"{kind}/%2F/bad", body)
        assert answer.status_code == 400
        assert "link-recovery" in answer.text
