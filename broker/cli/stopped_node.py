"""What the wiring log of a stopped node answers (waits).

Where a node that is alone has lived and is stopped, its directory is locked and its wiring log changed here: users,
vhosts, permissions and policies. In a directory in which no node has lived nothing is made: no node would know what was
written to a mistyped name.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import typer

from clusterbroker.broker.cli.exit_codes import UNREACHABLE, Failed
from clusterbroker.broker.server.binding import JOURNAL, RAFT, WIRING, Found
from clusterbroker.broker.server.control.calls import NODE
from clusterbroker.broker.server.control.operations import Refused, carry_out
from clusterbroker.broker.server.directory import Parts, WrongIdentity
from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.cluster.errors import ClusterError
from clusterbroker.cluster.local_log import LocalLog
from clusterbroker.cluster.log_store import LogStore
from clusterbroker.cluster.passwords import COST_DEFAULT
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.journal.errors import JournalError
from clusterbroker.journal.journal import lock_directory


def answered(directory: Path, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """As `control.client.ask`: `ok` with its facts or `error`. Failed when no node has lived here alone."""

    if operation in NODE:
        raise Failed(f"no node runs in {directory}", UNREACHABLE)
    try:
        parts = Parts(directory)
        _expect_a_lone_node(parts)
        lock = lock_directory(directory)
        try:
            _check(parts)
            answer, changed = asyncio.run(_ordered(parts, operation, arguments))
        finally:
            os.close(lock)
    except (Refused, ClusterError, JournalError, OSError, WrongIdentity, Unstarted) as error:
        return {"ok": False, "error": str(error)}
    if changed:
        typer.echo(f"clusterbroker: the node in {directory} is stopped: it knows of this when it starts", err=True)
    return {"ok": True, **answer}


def _expect_a_lone_node(parts: Parts) -> None:
    """One has lived here, and its wiring log is there. Nothing is made. Failed."""

    directory = parts.directory
    if parts.identity.cluster_id or (directory / RAFT).exists():
        raise Failed(
            f"no node runs in {directory}, and it is a cluster member's: start it, or ask another member", UNREACHABLE
        )
    if not parts.is_there(WIRING):
        if parts.identity.parts or parts.is_there(JOURNAL):
            raise Failed(f"no node runs in {directory}, and its wiring log is gone: start it, to hear what to do")
        raise Failed(
            f"no node runs in {directory}, and it is no node's directory: say --data-dir as the node was started with, "
            "or --url for a management API",
            UNREACHABLE,
        )


def _check(parts: Parts) -> None:
    """The wiring log is this node's own, of its last start. Raises DamagedDirectory."""

    if not parts.identity.parts:
        return  # of a release that bound nothing, or without its identity: the next start judges
    store = LogStore(parts.directory / WIRING, read_only=True)
    try:
        found = Found(True, store.stamp)
    finally:
        store.close()
    parts.check(WIRING, found)


async def _ordered(parts: Parts, operation: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The answer, and whether anything was changed."""

    loop = asyncio.get_running_loop()
    failed: asyncio.Future[Applied] = loop.create_future()
    directory = parts.directory / WIRING
    log = LocalLog(directory, call_soon=loop.call_soon_threadsafe, on_failure=failed.set_exception)
    before = log.map.applied

    class Stopped:
        """The Operator of a node that does not run."""

        map: ClusterView = log.map
        password_cost: int = COST_DEFAULT

        async def order(self, command: c.AnyCommand) -> Applied:
            applied: asyncio.Future[Applied] = loop.create_future()
            log.propose(command, applied.set_result)
            await asyncio.wait((applied, failed), return_when=asyncio.FIRST_COMPLETED)
            return (failed if failed.done() else applied).result()

    try:
        return await carry_out(Stopped(), operation, arguments), log.map.applied > before
    finally:
        log.close()
