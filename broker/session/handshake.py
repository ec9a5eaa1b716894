"""Who a client is: connection.start, the SASL mechanisms, and the limits on entering.

    PLAIN      authorization id NUL user NUL password (RFC 4616); the authorization id is ignored
    AMQPLAIN   a field table without its length: LOGIN, PASSWORD
    EXTERNAL   the name in the client's TLS certificate; offered only to a client that has shown a verified one, for
               many take the first mechanism that they know. Of the node's own client for its management
               process the response names the user to be

A node that takes the tokens of an authority takes one in the place of a password, with any user name: user and rights
are then the token's, and the connection ends with it unless connection.update-secret brings another one of the same
user in time. Who signed in otherwise has nothing to refresh: connection.update-secret is answered, and changes nothing.

Why a login was refused is in the node's log and never in the answer (amqp-rules 5.1). A user that does not exist
costs the same time as a wrong password, and one that has to wait after too many failures is told the same as well. So
is one that may not come from where the client is, whatever its password: nobody looks at that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.errors import command_invalid, not_allowed, syntax_error
from clusterbroker.broker.amqp.fields import decode_fields
from clusterbroker.broker.node.effects import Check, Verdict
from clusterbroker.broker.node.redirect import addresses
from clusterbroker.broker.session.ports import ConnectionCore
from clusterbroker.broker.session.state import State
from clusterbroker.broker.version import VERSION

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.cluster.entities import User

CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


CLIENT_VALUES_MAX: Final = 256
NOT_FROM_HERE: Final = "this user may only connect from a loopback address"


def start(node: Node, external: bool = False) -> methods.ConnectionStart:
    """`external`: the client has shown who it is before its first byte (`Connection.proved`). In a cluster a client is
    told where else it may connect: the AMQP addresses of the members."""
    properties: dict[str, Any] = {
        "capabilities": dict(CAPABILITIES),
        "cluster_name": node.cluster_name,
        "product": "clusterbroker",
        "version": VERSION,
        "platform": "Python",
        "information": "AMQP 0-9-1 with RabbitMQ's extensions",
    }
    if node.part is not None:
        properties["node"] = node.options.name
        properties["members"] = list(addresses(node.map))
    mechanisms = b"PLAIN AMQPLAIN EXTERNAL" if external else b"PLAIN AMQPLAIN"
    return methods.ConnectionStart(0, 9, properties, mechanisms, b"en_US")


def login(connection: ConnectionCore, mechanism: str, response: bytes) -> None:
    """Raises 503 for an unknown mechanism, 502 for a response that cannot be read; otherwise verifies it."""
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise syntax_error("a PLAIN response has three parts")
        _verify(connection, parts[1], parts[2])
    elif mechanism == "AMQPLAIN":
        table = decode_fields(response)
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(user, str) or not isinstance(password, (str, bytes)):
            raise syntax_error("an AMQPLAIN response has LOGIN and PASSWORD")
        _verify(connection, user.encode(), password.encode() if isinstance(password, str) else bytes(password))
    elif mechanism == "EXTERNAL" and connection.proved:
        name = connection.peer_identity or response.decode("utf-8", "replace")
        if connection.node.map.user(name) is None:
            _refuse(connection, name, "EXTERNAL", "no such user")
        elif _is_elsewhere(connection, name):
            _refuse(connection, name, "EXTERNAL", NOT_FROM_HERE)
        else:
            connection.authenticated(name, AccountRights(connection.node.map, name))
    else:
        raise command_invalid(f"unknown authentication mechanism '{mechanism}'")


def accepted(properties: dict[str, Any]) -> dict[str, Any]:
    """What a client says of itself. It is kept as long as the connection, from before anybody has signed in, and the
    values of 8 KiB may take as much as 200; so their number is bounded. Raises 502."""
    if values(properties) > CLIENT_VALUES_MAX:
        raise syntax_error(f"more than {CLIENT_VALUES_MAX} client properties")
    return properties


def values(tree: Any) -> int:
    """In tables and arrays, these included."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return 1 + sum(map(values, inner))


def _is_elsewhere(connection: ConnectionCore, name: str) -> bool:
    """ "guest only from loopback", by whatever mechanism."""
    return name in connection.node.options.loopback_users and not connection.loopback


def _verify(connection: ConnectionCore, raw_user: bytes, password: bytes) -> None:
    user = raw_user.decode("utf-8", "replace")
    mechanism = connection.mechanism
    connection.state = State.CHECKING
    connection.review_reading()

    elsewhere = _is_elsewhere(connection, user)

    def checked(verdict: Verdict) -> None:
        if connection.state is not State.CHECKING:
            return
        token = verdict.token
        name = user if token is None else token.name
        if elsewhere and token is None:
            _refuse(connection, name, mechanism, NOT_FROM_HERE)
        elif verdict.refusal:
            _refuse(connection, name, mechanism, verdict.refusal)
        elif token is None and connection.node.map.user(name) is None:
            _refuse(connection, name, mechanism, "the user was deleted just now")
        elif _is_elsewhere(connection, name):
            _refuse(connection, name, mechanism, NOT_FROM_HERE)
        elif token is None:
            connection.authenticated(name, AccountRights(connection.node.map, name))
        else:
            connection.authenticated(name, token.grants, verdict.until_ms)

    known = None if elsewhere else connection.node.map.user(user)
    _ask(connection, user, known, password, checked, lambda: connection.state is State.CHECKING)


def _ask(
    connection: ConnectionCore, name: str, user: User | None, secret: bytes, then: Callable[[Verdict], None],
    wanted: Callable[[], bool],
) -> None:  # fmt: skip
    connection.node.checks.append(Check(name, user, secret, connection.address, then, wanted))


def _refuse(connection: ConnectionCore, user: str, mechanism: str, why: str) -> None:
    connection.count_login(user, False)
    connection.node.log.refused(connection.peer, user, mechanism, why)
    connection.state = State.START
    connection.refused(
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
    )


def tuned(name: str, wanted: int, offered: int, least: int) -> int:
    """What connection.tune-ok may say; 530 for more than was offered, and for less than works."""
    if offered and (wanted == 0 or wanted > offered):
        what = "higher" if wanted else "lower"
        bound = "maximum" if wanted else "minimum"
        limit = offered if wanted else least
        raise not_allowed(f"negotiated {name} = {wanted} is {what} than the {bound} allowed value ({limit})")
    if wanted and wanted < least:
        raise not_allowed(f"negotiated {name} = {wanted} is lower than the minimum allowed value ({least})")
    return wanted


def check_limits(connection: ConnectionCore, vhost: str) -> None:
    """530 when the vhost or the user has as many connections as it may have, at all members."""
    node = connection.node
    limit = node.map.vhost_limits(vhost).connections_max
    if limit is not None and 0 <= limit <= node.occupancy.of_vhost(vhost):
        raise not_allowed(
            f"access to vhost '{vhost}' refused for user '{connection.user}': connection limit ({limit}) is reached"
        )
    known = node.map.user(connection.user)
    limit = known.limits.connections_max if known is not None else None
    if limit is not None and 0 <= limit <= node.occupancy.of_user(connection.user):
        raise not_allowed(
            f"Connection refused for user '{connection.user}': user connection limit ({limit}) is reached"
        )


def check_channel_limits(connection: ConnectionCore) -> None:
    """530 when the connection, the node, or the user at this node has as many channels as it may have."""
    node, user = connection.node, connection.user
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
    count, limit = len(connection.channels), connection.channel_max
    if count >= limit:
        # amqp-rules 5.1: open channels count, not the highest number
        raise not_allowed(f"number of channels opened ({count}) has reached the negotiated channel_max ({limit})")


def update_secret(connection: ConnectionCore, secret: bytes) -> None:
    """connection.update-secret: another token of the same user is verified like the first one (530 when refused), and
    its rights take the place of those of the one before, be they more or less."""
    if not connection.access.by_token:
        connection.send(0, methods.ConnectionUpdateSecretOk())
        return
    if connection.checks_secret:
        # each costs as much as a login, so nobody may have a queue of them before the logins of others
        raise command_invalid("connection.update-secret before the last one was answered")
    connection.checks_secret = True

    def checked(verdict: Verdict) -> None:
        connection.checks_secret = False
        vhost = connection.vhost
        if connection.state is not State.OPEN or vhost is None:
            return  # nothing is said after connection.close
        token = verdict.token
        if verdict.refusal or token is None:
            connection.fail(not_allowed("New secret was refused by one of the backends"))
        elif token.name != connection.user:
            connection.fail(not_allowed("New secret was refused by one of the backends: it is another user's"))
        elif not token.grants.enters(vhost.name):
            connection.fail(not_allowed(f"access to vhost '{vhost.name}' refused for user '{connection.user}'"))
        else:
            connection.renew_rights(token.grants, verdict.until_ms)
            connection.send(0, methods.ConnectionUpdateSecretOk())

    known = connection.node.map.user(connection.user)
    _ask(connection, connection.user, known, secret, checked, lambda: connection.state is State.OPEN)
