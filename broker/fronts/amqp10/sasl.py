"""How a client of AMQP 1.0 signs in (specification, part 5.3; `broker.access.sign_in` has the rules).

PLAIN      authorization id NUL user NUL password (RFC 4616); the authorization id is ignored
EXTERNAL   the name in the client's TLS certificate; offered only to a client that has shown a verified one
ANONYMOUS  as the user that the node's settings name; offered only where they name one
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clusterbroker.broker.access.sign_in import Outcome, by_identity, by_secret
from clusterbroker.broker.fronts.amqp10.ports import ConnectionCore
from clusterbroker.broker.wire.amqp10.performatives import SaslInit, SaslMechanisms

OK: Final = 0
AUTH: Final = 1
SYS_PERM: Final = 3
"""Codes of an outcome (5.3.3.6)."""
RESPONSE_BYTES_MAX: Final = 16 << 10


def offered(connection: ConnectionCore) -> SaslMechanisms:
    """What a client may choose of."""
    names = ["PLAIN"]
    if connection.peer_identity is not None:
        names.append("EXTERNAL")
    if connection.node.options.anonymous_user:
        names.append("ANONYMOUS")
    return SaslMechanisms(sasl_server_mechanisms=tuple(names))


def login(
    connection: ConnectionCore, init: SaslInit, wanted: Callable[[], bool], then: Callable[[Outcome | None], None]
) -> None:
    """`then` hears the outcome, perhaps later; None: nothing that could be verified."""
    response = init.initial_response or b""
    node = connection.node
    if init.mechanism not in offered(connection).sasl_server_mechanisms or len(response) > RESPONSE_BYTES_MAX:
        then(None)
    elif init.mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            then(None)
            return
        by_secret(node, connection, parts[1].decode("utf-8", "replace"), parts[2], "PLAIN", wanted, then)
    elif init.mechanism == "EXTERNAL":
        assert connection.peer_identity is not None, "offered to none but those who have one"
        then(by_identity(node, connection, connection.peer_identity, "EXTERNAL"))
    else:
        then(by_identity(node, connection, node.options.anonymous_user, "ANONYMOUS"))
