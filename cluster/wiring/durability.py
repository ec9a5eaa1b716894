"""Commands whose answer waits for the disk.

No crash can break the answer to a command about something that a restart ends anyway (a transient queue or exchange,
a binding with such an end), or to one that finds its object already there (most declares are redeclares). Such a
command may be answered at once, as long as no earlier command still waits.
"""

from __future__ import annotations

from . import commands as c
from .view import ClusterView


def waits_for_disk(view: ClusterView, command: c.AnyCommand) -> bool:
    """Whether the command may change something durable; in doubt, yes."""
    match command:
        case c.DeclareQueue():
            return command.durable and not command.exclusive and view.queue(command.vhost, command.name) is None
        case (
            c.DeclareDelayedExchange() | c.DeclareHistoryExchange() | c.DeclareDeduplicatingExchange()
        ):  # its queue is durable
            return view.exchange(command.vhost, command.name) is None
        case c.ExchangeDeclaration():
            return command.durable and view.exchange(command.vhost, command.name) is None
        case c.DeleteQueue():
            queue = view.queue_by_id(command.queue_id)
            return queue is not None and not queue.transient
        case c.PauseQueue():
            if command.staging or command.why:
                return True
            queue = view.queue(command.vhost, command.name)
            return queue is not None and not queue.transient and queue.paused is not command.paused
        case c.DeleteExchange():
            exchange = view.exchange(command.vhost, command.name)
            return exchange is not None and exchange.durable
        case c.Bind() | c.Unbind():
            known = view.find_binding(command) is not None
            return view.is_durable_binding(command) and known is isinstance(command, c.Unbind)
        case c.Loosen():
            return waits_for_disk(view, command.ending)
        case c.RemoveConnection() | c.ForgetTransient():
            return False
        case _:
            return True
