"""What is asked of the node of a data directory, running or not (waits).

A node that runs in the data directory is asked through its socket. Otherwise the directory is locked and its wiring
log changed here: users, vhosts, permissions and policies.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from broker.cli.endings import FAILED, UNREACHABLE, Failed


def performed(
    directory: Path,
    do: str,
    *,
    patience_s: float = 30.0,
    meanwhile: AbstractContextManager[None] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """The answer of the node, or of its wiring log. Failed when it is no.

    `meanwhile`: what is done until the answer is there.
    """
    from broker.server.admin import RUNNING, ask

    asked = {"do": do, **arguments}
    try:
        with meanwhile or nullcontext():
            answer = ask(directory, asked, patience_s)
    except TimeoutError:
        raise Failed(
            f"the node has not answered '{do}' within {patience_s:g} s: look at its log", UNREACHABLE
        ) from None
    except OSError as error:
        raise Failed(f"the node in {directory} cannot be asked: {error.strerror or error}", UNREACHABLE) from None
    if answer is None and do in RUNNING:
        raise Failed(f"no node runs in {directory}", UNREACHABLE)
    if answer is None:
        answer = _offline(directory, asked)
    if not answer.pop("ok"):
        raise Failed(str(answer["error"]), FAILED)
    return answer


def _offline(directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    import os

    from broker.server.operations import Refused
    from cluster.errors import ClusterError
    from journal.errors import JournalError
    from journal.journal import lock_directory

    if (directory / "raft").exists():
        return {"ok": False, "error": f"{directory} is a cluster member's: start it, or ask another member"}
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = lock_directory(directory)
        try:
            return {"ok": True, **asyncio.run(_ordered(directory, asked))}
        finally:
            os.close(lock)
    except (Refused, ClusterError, JournalError, OSError) as error:
        return {"ok": False, "error": str(error)}


async def _ordered(directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    from broker.server.operations import carry_out
    from cluster import commands as c
    from cluster.local_log import LocalLog
    from cluster.passwords import COST_DEFAULT
    from cluster.state import Applied
    from cluster.view import ClusterView

    loop = asyncio.get_running_loop()
    failed: asyncio.Future[Applied] = loop.create_future()
    log = LocalLog(directory / "wiring", call_soon=loop.call_soon_threadsafe, on_failure=failed.set_exception)

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
        return await carry_out(Stopped(), asked)
    finally:
        log.close()
