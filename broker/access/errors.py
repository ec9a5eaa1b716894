"""Errors of a client's request, by kind: each front maps a kind to its protocol's own code.

    kind                  0-9-1   meaning
    access_refused        403     no permission, or a reserved name
    not_found             404     no such queue or exchange
    resource_locked       405     the queue is exclusive to another connection
    precondition_failed   406     a request that is not as it must be, or is more than a limit allows
    resource_error        506     more than the node has room for
    not_allowed           530     a virtual host that the user may not enter, or a limit of connections or sessions
    moved                 320     clients shall go to another node
    not_implemented       540     what this kind of queue does not offer
    internal_error        541     nothing is known of the outcome

The kinds are those of the cluster's answers (`cluster.errors`), so one table of a front serves both.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

Kind = Literal[
    "access_refused", "not_found", "resource_locked", "precondition_failed", "resource_error", "not_implemented",
    "internal_error", "not_allowed", "moved",
]  # fmt: skip


class Refusal(Exception):
    """The request has no effect. `text` is for the client."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text


class Impersonated(Refusal):
    """A message names another user than the one that signed in. AMQP 0-9-1 knows no better kind for it."""

    def __init__(self, text: str) -> None:
        super().__init__("precondition_failed", text)


access_refused = partial(Refusal, "access_refused")
not_found = partial(Refusal, "not_found")
resource_locked = partial(Refusal, "resource_locked")
precondition_failed = partial(Refusal, "precondition_failed")
resource_error = partial(Refusal, "resource_error")
not_implemented = partial(Refusal, "not_implemented")
internal_error = partial(Refusal, "internal_error")
not_allowed = partial(Refusal, "not_allowed")
moved = partial(Refusal, "moved")
