"""Who a client is: connection.start, the SASL mechanisms, and the limits on entering.

    PLAIN      authorization id NUL user NUL password (RFC 4616); the authorization id is ignored
    AMQPLAIN   a field table without its length: LOGIN, PASSWORD
    EXTERNAL   the name in the client's TLS certificate; offered only on such a socket. On the node's own `amqp.sock`,
               which only who may read its data directory can open, the response names the user to be

Why a login was refused is in the node's log and never in the answer (amqp-rules 5.1). A user that does not exist
costs the same time as a wrong password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.amqp import methods
from broker.amqp.errors import command_invalid, not_allowed, syntax_error
from broker.amqp.fields import decode_fields
from broker.node.elsewhere import addresses
from broker.session.state import State
from broker.version import VERSION

if TYPE_CHECKING:
    from broker.node.core import Node
    from broker.session.connection import Connection

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


def start(node: Node, trusted: bool = False) -> methods.ConnectionStart:
    """In a cluster a client is told where else it may connect: the AMQP addresses of the members."""
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
    mechanisms = b"PLAIN AMQPLAIN EXTERNAL" if node.offers_external or trusted else b"PLAIN AMQPLAIN"
    return methods.ConnectionStart(0, 9, properties, mechanisms, b"en_US")


def login(connection: Connection, mechanism: str, response: bytes) -> None:
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
    elif mechanism == "EXTERNAL" and (connection.trusted or connection.peer_identity is not None):
        name = connection.peer_identity or response.decode("utf-8", "replace")
        if connection.node.map.user(name) is None:
            _refuse(connection, name, "EXTERNAL", "no such user")
        else:
            connection.authenticated(name)
    else:
        raise command_invalid(f"unknown authentication mechanism '{mechanism}'")


def _verify(connection: Connection, raw_user: bytes, password: bytes) -> None:
    user = raw_user.decode("utf-8", "replace")
    mechanism = connection.mechanism
    connection.state = State.CHECKING
    connection.review_reading()

    def checked(ok: bool) -> None:
        if connection.state is not State.CHECKING:
            return
        known = connection.node.map.user(user)
        if not ok or known is None:
            _refuse(connection, user, mechanism, "invalid credentials")
        elif user in connection.node.options.loopback_users and not connection.loopback:
            # "guest only from loopback"
            _refuse(connection, user, mechanism, "this user may only connect from a loopback address")
        else:
            connection.authenticated(user)

    connection.node.check_password(user, password, checked)


def _refuse(connection: Connection, user: str, mechanism: str, why: str) -> None:
    connection.node.churn.refused_logins += 1
    connection.node.log_refused(connection, user, mechanism, why)
    connection.state = State.START
    connection.refused(
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
    )


def check_limits(connection: Connection, vhost: str) -> None:
    """530 when the vhost or the user has as many connections as it may have."""
    node = connection.node
    limit = node.map.vhost_limits(vhost).connections_max
    inside = sum(1 for other in node.connections.values() if other.vhost is not None and other.vhost.name == vhost)
    if limit is not None and 0 <= limit <= inside:
        raise not_allowed(
            f"access to vhost '{vhost}' refused for user '{connection.user}': connection limit ({limit}) is reached"
        )
    known = node.map.user(connection.user)
    limit = known.limits.connections_max if known is not None else None
    own = sum(1 for other in node.connections.values() if other.vhost is not None and other.user == connection.user)
    if limit is not None and 0 <= limit <= own:
        raise not_allowed(
            f"Connection refused for user '{connection.user}': user connection limit ({limit}) is reached"
        )


def update_secret(connection: Connection, secret: bytes) -> None:
    """connection.update-secret: the new password (or token) is verified like the first one (530 when refused)."""

    if connection.checks_secret:
        # each costs as much as a login, so nobody may have a queue of them before the logins of others
        raise command_invalid("connection.update-secret before the last one was answered")
    connection.checks_secret = True

    def checked(ok: bool) -> None:
        connection.checks_secret = False
        if connection.state is not State.OPEN:
            return  # nothing is said after connection.close
        if ok:
            connection.send(0, methods.ConnectionUpdateSecretOk())
        else:
            connection.fail(not_allowed("New secret was refused by one of the backends"))

    connection.node.check_password(connection.user, secret, checked)
