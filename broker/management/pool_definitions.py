"""Worker pools in definitions.

    {"vhost": "/", "name": "core", "template": "core", "max": 4, ...,
     "activity_bindings": [{"destination": "reports", "destination_type": "queue", "routing_key": "", "arguments": {}}]}

An entry of `pools` has the fields of a declaration, and what clients have bound to the pool's reports: RabbitMQ passes
over `pools`, and would refuse bindings of an exchange that it has not. Groups, workers, pins and pauses are no
definitions.

Pools are no part of an import, whose commands have been the same for all releases: they are declared one by one when
the import is done, and then bound by another import. So one that is refused then leaves the rest imported; all that can
be known before is an obstacle to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, field

from clusterbroker.cluster.errors import WiringError
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Binding
from clusterbroker.cluster.wiring.exchange_rules import EXCHANGE_DECLARATIONS
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.cluster.wiring.view import ClusterView

from . import bodies, pools
from .errors import bad_request
from .forms import table
from .reading import Document, Reading, plain_table, same


class ActivityBinding(bodies.ImportedBinding, kw_only=True):
    """Of reports of a pool's workers."""

    destination: bodies.Name


def _bindings(name: str, value: Any) -> list[ActivityBinding]:
    if not isinstance(value, list):
        raise bad_request(f"'{name}' should be a list")
    return [ActivityBinding.of(table(name, one)) for one in value]


class PoolEntry(pools.Declaration):
    """A worker pool in a document."""

    activity_bindings: Annotated[
        list[ActivityBinding], Meta(extra={"take": _bindings}, description="What is bound to reports of its workers")
    ] = field(default_factory=list)


class PoolDraft(NamedTuple):
    """What a document asks for of one pool."""

    declare: c.DeclarePool
    bindings: tuple[c.Bind, ...] = ()


def bindings_of(drafts: Iterable[PoolDraft]) -> list[c.Bind]:
    """Of reports, of all pools."""
    return [binding for draft in drafts for binding in draft.bindings]


# -- out ------------------------------------------------------------------------------------------------------


def exported(reading: Reading, vhosts: Iterable[str], *, named: bool) -> Document:
    """The section, if there is anything in it. `named`: entries name their vhost."""
    entries = [entry for vhost in vhosts for entry in _exported(reading, vhost)]
    for entry in entries if not named else ():
        del entry["vhost"]
    return {"pools": entries} if entries else {}


def _exported(reading: Reading, vhost: str) -> Iterator[Document]:
    bound: dict[str, list[Document]] = {}
    table_of_pools = reading.map.pools
    for binding in reading.map.bindings(vhost):
        owner = table_of_pools.owner_of_exchange(vhost, binding.source)
        if owner is not None and _is_a_clients(reading, binding):
            told = same(binding, "destination", "routing_key") | {"destination_type": binding.destination_kind}
            bound.setdefault(owner.name, []).append(told | {"arguments": plain_table(binding.arguments)})
    for pool in sorted(table_of_pools.all(vhost), key=lambda pool: pool.name):
        if not pool.deleting:
            told = same(pool, "vhost", "name", "template") | pools.settings(reading.map, pool)
            yield told | {"activity_bindings": bound.get(pool.name, [])}


def _is_a_clients(reading: Reading, binding: Binding) -> bool:
    """Neither the pool's own, nor one that goes with a connection."""
    if binding.destination_kind == "exchange":
        return reading.map.pools.owner_of_exchange(binding.vhost, binding.destination) is None
    queue = reading.map.queue(binding.vhost, binding.destination)
    return queue is not None and queue.exclusive_owner is None and reading.map.pools.queue(queue.queue_id) is None


# -- in -------------------------------------------------------------------------------------------------------


def drafted(entry: Document, at_ms: int, vhost: str, name: str) -> PoolDraft:
    """One entry. Refused (400) when it cannot be read."""
    try:
        activity = PoolNames(name)
    except UnicodeEncodeError:
        raise bad_request("'name' is not valid Unicode") from None
    source = activity.exchange_of(activity.activity)
    said = PoolEntry.of(entry)
    bindings = (one.command(at_ms, vhost, source, one.destination) for one in said.activity_bindings)
    return PoolDraft(pools.declaration(entry, at_ms, vhost, name), tuple(bindings))


def with_their_bindings(
    commands: Sequence[c.Defining], drafts: Sequence[PoolDraft]
) -> tuple[list[c.Defining], list[PoolDraft]]:
    """Bindings of reports that stand among all others come after their pools."""
    place = {}
    for number, draft in enumerate(drafts):
        names = PoolNames(draft.declare.name)
        place[draft.declare.vhost, names.exchange_of(names.activity)] = number
    kept: list[c.Defining] = []
    found = list(drafts)
    for command in commands:
        if isinstance(command, c.Bind) and (command.vhost, command.source) in place:
            at = place[command.vhost, command.source]
            found[at] = found[at]._replace(bindings=(*found[at].bindings, command))
        else:
            kept.append(command)
    return kept, found


def mistakes(commands: Iterable[c.Defining], drafts: Sequence[PoolDraft]) -> Iterator[str]:
    """Of a document by itself: a pool that is named twice, and names that a pool of it would close."""
    closing: dict[tuple[str, str], tuple[PoolNames, bool]] = {}
    """And whether the pool has a stream of events."""
    for number, draft in enumerate(drafts):
        names = PoolNames(draft.declare.name)
        where = draft.declare.vhost, names.exchange
        if where in closing:
            yield f"pools[{number}]: '{draft.declare.name}' is named twice"
        closing[where] = names, draft.declare.events
    for command in commands if closing else ():
        if isinstance(command, (c.DeclareQueue, *EXCHANGE_DECLARATIONS)):
            closes = closing.get((command.vhost, command.name.partition("-")[0]))
            if closes is None:
                continue
            names_of, tells = closes
            if isinstance(command, c.DeclareQueue):
                if names_of.has_queue(command.name, tells):
                    yield f"queue '{command.name}' is defined, and a pool of the definitions would need its name"
            elif command.name in names_of.exchanges:
                yield f"exchange '{command.name}' is defined, and a pool of the definitions would need its name"


def refusals(view: ClusterView, drafts: Iterable[PoolDraft], commands: Iterable[c.Defining] = ()) -> Iterator[str]:
    """Why pools could not be declared after these commands, as far as it is known. Of a vhost that is still to come
    nothing is."""
    coming = {command.name for command in commands if isinstance(command, c.AddVhost)}
    for draft in drafts:
        vhost = draft.declare.vhost
        if vhost in coming and view.vhost(vhost) is None:
            continue
        try:
            view.tried_pool(draft.declare)
        except WiringError as error:
            yield error.text
