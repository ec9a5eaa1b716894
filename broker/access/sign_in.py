"""How a client comes in, by whatever protocol: who it is, which virtual host it enters, and the limits on that.

A client that brings a name and a secret is verified off the loop (`Node.checks`): a password, or the token of an
authority, with any name. Why a login was refused is in the node's log and never in the answer (amqp-rules 5.1). A user
that does not exist costs the same time as a wrong password, and one that has to wait after too many failures is told
the same as well. So is one that may not come from where the client is, whatever its password: nobody looks at that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.errors import Refusal, access_refused, moved, not_allowed
from clusterbroker.broker.access.rights import AccountRights, Rights
from clusterbroker.broker.access.worker_rights import WorkerRights
from clusterbroker.broker.node.effects import WRONG, Check, Verdict
from clusterbroker.broker.node.failover import DRAINED, moving_text
from clusterbroker.broker.pools.credentials import launch_of

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import ChannelCore
    from clusterbroker.broker.node.core import Node

_NEW_REFUSED: Final = "New secret was refused by one of the backends"
NOT_FROM_HERE: Final = "this user may only connect from a loopback address"


class Applicant(Protocol):
    """A connection that wants in."""

    @property
    def id(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def trusted(self) -> bool: ...

    @property
    def loopback(self) -> bool:
        """Its other end is on this machine."""


class Outcome(NamedTuple):
    """What came of it."""

    user: str
    access: Authorization | None
    """None: refused."""


def login_refused(mechanism: str) -> Refusal:
    """Says nothing of the reason."""
    return access_refused(
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
    )


def address_of(applicant: Applicant) -> str:
    """Where the client is, without its port; empty: it came by a way that only the node's owner has."""
    return "" if applicant.trusted else applicant.peer.rpartition(":")[0].strip("[]") or applicant.peer


def by_secret(
    node: Node,
    applicant: Applicant,
    name: str,
    secret: bytes,
    mechanism: str,
    wanted: Callable[[], bool],
    then: Callable[[Outcome], None],
) -> None:
    """By a password or a token. `then` is called later, if the answer is still `wanted`."""
    elsewhere = _is_elsewhere(node, applicant, name)
    launch = launch_of(name)
    if launch is not None and node.map.pools.launch(launch) is not None:
        node.soon(lambda: then(_of_worker(node, applicant, name, launch, secret, mechanism)) if wanted() else None)
        return

    def verified(verdict: Verdict) -> None:
        if not wanted():
            return
        token = verdict.token
        user = name if token is None else token.name
        if elsewhere and token is None:
            why = NOT_FROM_HERE
        elif verdict.refusal:
            why = verdict.refusal
        elif token is None and node.map.user(user) is None:
            why = "the user was deleted just now"
        elif _is_elsewhere(node, applicant, user):
            why = NOT_FROM_HERE
        else:
            rights = AccountRights(node.map, user) if token is None else token.grants
            then(_accepted(node, applicant, user, rights, verdict.until_ms))
            return
        then(_refused(node, applicant, user, mechanism, why))

    known = None if elsewhere else node.map.user(name)
    node.checks.append(Check(name, known, secret, address_of(applicant), verified, wanted))


def _of_worker(
    node: Node, applicant: Applicant, name: str, launch: str, secret: bytes, mechanism: str
) -> Outcome:  # fmt: skip
    """A worker that its pool has started. Its password is no secret of a person: it is computed, in no time, and nobody
    guesses 256 bits."""
    rights = WorkerRights(node.map, launch)
    good = node.pools.key.matches(launch, secret)
    if good and not rights.gone:
        return _accepted(node, applicant, name, rights)
    return _refused(node, applicant, name, mechanism, rights.gone if good else WRONG.refusal)


def by_identity(node: Node, applicant: Applicant, name: str, mechanism: str) -> Outcome:
    """By a proof that the client brought before its first byte: a certificate, or the way that it came."""
    if node.map.user(name) is None:
        return _refused(node, applicant, name, mechanism, "no such user")
    if _is_elsewhere(node, applicant, name):
        return _refused(node, applicant, name, mechanism, NOT_FROM_HERE)
    return _accepted(node, applicant, name, AccountRights(node.map, name))


def _is_elsewhere(node: Node, applicant: Applicant, name: str) -> bool:
    """ "guest only from loopback", by whatever mechanism."""
    return name in node.options.loopback_users and not applicant.loopback


def _accepted(node: Node, applicant: Applicant, user: str, rights: Rights, until_ms: int = 0) -> Outcome:
    _count(node, applicant, user, True)
    return Outcome(user, Authorization(node, applicant.id, user, rights, until_ms))


def _refused(node: Node, applicant: Applicant, user: str, mechanism: str, why: str) -> Outcome:
    _count(node, applicant, user, False)
    node.log.refused(applicant.peer, user, mechanism, why)
    return Outcome(user, None)


def _count(node: Node, applicant: Applicant, user: str, ok: bool) -> None:
    """A name that is no user's is not told: somebody may have mistaken it for the password."""
    if not applicant.trusted:
        known = ok or node.map.user(user) is not None
        node.churn.logins.count(address_of(applicant), user if known else "", ok)


def renew(
    access: Authorization,
    applicant: Applicant,
    secret: bytes,
    wanted: Callable[[], bool],
    then: Callable[[Refusal | None], None],
) -> None:
    """Another token of the same user is verified like the first one; its rights and its end take the place of those of
    the one before, be they more or less. `then(None)`: they have, or the client has no token that could be renewed;
    with a refusal the old token stays. It is called later, if the answer is still `wanted`.

    `access.renewing` until then: each costs as much as a login, so nobody may have a queue of them before the logins of
    others."""
    assert not access.renewing, "the front refuses another one meanwhile"
    if not access.by_token:
        then(None)
        return
    access.renewing = True

    def verified(verdict: Verdict) -> None:
        access.renewing = False
        if not wanted():
            return
        token, vhost, user = verdict.token, access.vhost.name, access.user
        if verdict.refusal or token is None:
            then(not_allowed(_NEW_REFUSED))
        elif token.name != user:
            then(not_allowed(f"{_NEW_REFUSED}: it is another user's"))
        elif not token.grants.enters(vhost):
            then(not_allowed(f"access to vhost '{vhost}' refused for user '{user}'"))
        else:
            access.renew(token.grants, verdict.until_ms)
            then(None)

    node = access.node
    node.checks.append(Check(access.user, node.map.user(access.user), secret, address_of(applicant), verified, wanted))


# -- virtual hosts and limits


def enter(access: Authorization, name: str, trusted: bool) -> None:
    """The client enters a virtual host; `leave` when its socket is gone. Raises Refusal: also where the vhost or the
    user has as many connections as it may have, at all members."""
    node, user = access.node, access.user
    if node.turns_away and not trusted:
        raise moved(moving_text(DRAINED, node.map, node.options.name))
    vhost = node.vhosts.get(name)
    if vhost is None:
        raise not_allowed(f"vhost {name} not found")
    if not access.rights.enters(name):
        raise not_allowed(f"access to vhost '{name}' refused for user '{user}'")
    limit = node.map.vhost_limits(name).connections_max
    if limit is not None and 0 <= limit <= node.occupancy.of_vhost(name):
        raise not_allowed(f"access to vhost '{name}' refused for user '{user}': connection limit ({limit}) is reached")
    known = node.map.user(user)
    limit = known.limits.connections_max if known is not None else None
    if limit is not None and 0 <= limit <= node.occupancy.of_user(user):
        raise not_allowed(f"Connection refused for user '{user}': user connection limit ({limit}) is reached")
    node.occupancy.entered(name, user, access.connection_id)
    access.enter(vhost)


def leave(access: Authorization) -> None:
    """The client is gone. One that has entered no vhost counts nowhere."""
    if access.entered is not None:
        access.node.occupancy.left(access.vhost.name, access.user, access.connection_id)


def check_session(access: Authorization) -> None:
    """A channel or the like wants to begin. Refuses where the node, or the user at this node, has as many as it may
    have."""
    node, user = access.node, access.user
    count, limit = node.occupancy.channels, node.options.channels_max
    if count >= limit:
        at = f"node '{node.options.name}'"
        raise not_allowed(f"number of channels opened on {at} has reached the maximum allowed limit of ({limit})")
    known = node.map.user(user)
    most = known.limits.channels_max if known is not None else None
    if most is not None and 0 <= most <= node.occupancy.channels_of_user[user]:
        raise not_allowed(
            f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({most})"
        )


def session_began(access: Authorization) -> None:
    access.node.churn.channels += 1
    access.node.occupancy.channel_began(access.user)


def session_ended(access: Authorization, session: ChannelCore) -> None:
    """It is over, and so is what it counted for."""
    access.node.churn.left(session.totals)
    access.node.occupancy.channel_ended(access.user)
