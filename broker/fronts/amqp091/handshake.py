"""The SASL mechanisms of 0-9-1, and what a handshake negotiates (`broker.access.sign_in` has the rules of login).

    PLAIN      authorization id NUL user NUL password (RFC 4616); the authorization id is ignored
    AMQPLAIN   a field table without its length: LOGIN, PASSWORD
    EXTERNAL   the name in the client's TLS certificate; offered only to a client that has shown a verified one, for
               many take the first mechanism that they know

A node that takes the tokens of an authority takes one in the place of a password, with any user name: user and rights
are then the token's, and the connection ends with it unless connection.update-secret brings another one of the same
user in time. Who signed in otherwise has nothing to refresh: connection.update-secret is answered, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.sign_in import Outcome, by_identity, by_secret, login_refused, renew
from clusterbroker.broker.fronts.amqp091.ports import ConnectionCore
from clusterbroker.broker.fronts.amqp091.reply_codes import amqp_error
from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.node.failover import addresses
from clusterbroker.broker.version import VERSION
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.errors import command_invalid, not_allowed, syntax_error
from clusterbroker.broker.wire.amqp091.fields import decode_fields

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node

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
    if node.role is not None:
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
        assert connection.peer_identity is not None, "proved"
        _answer(connection, by_identity(connection.node, connection, connection.peer_identity, mechanism))
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


def _verify(connection: ConnectionCore, raw_user: bytes, password: bytes) -> None:
    connection.state = State.CHECKING
    connection.review_reading()
    by_secret(
        connection.node,
        connection,
        raw_user.decode("utf-8", "replace"),
        password,
        connection.mechanism,
        lambda: connection.state is State.CHECKING,
        lambda outcome: _answer(connection, outcome),
    )


def _answer(connection: ConnectionCore, outcome: Outcome) -> None:
    if outcome.access is not None:
        connection.authenticated(outcome.access)
        return
    connection.state = State.START
    connection.refused(login_refused(connection.mechanism).text)


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


def update_secret(connection: ConnectionCore, secret: bytes) -> None:
    """connection.update-secret: another token of the same user (530 when refused; `sign_in.renew`)."""
    if connection.access.renewing:
        raise command_invalid("connection.update-secret before the last one was answered")

    def wanted() -> bool:
        return connection.state is State.OPEN  # nothing is said after connection.close

    def renewed(refusal: Refusal | None) -> None:
        if refusal is not None:
            connection.fail(amqp_error(refusal))
            return
        if connection.access.by_token:
            connection.rights_renewed()
        connection.send(0, methods.ConnectionUpdateSecretOk())

    renew(connection.access, connection, secret, wanted, renewed)
