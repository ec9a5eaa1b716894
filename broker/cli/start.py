"""`clusterbroker start`: a node in the foreground (waits).

What the flags alone decide is not asked of `broker.config`, whose imports take longer than the rest of a start; both
ways lead to the same options (tests/unit/broker/test_config.py).

Beside the log a start says where it listens (stdout), and why it ended (stderr). With `log.format = "json"` each line
of both streams is one JSON object, for collectors take both for one: `node.listening` and `node.ended`; what libraries
and the interpreter have to say becomes a line as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.cli.collector import look_seldom
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.server.control.node_operations import chains, reload_certificates
from clusterbroker.broker.server.endings import Restart
from clusterbroker.broker.server.listener import address, raise_descriptor_limit
from clusterbroker.broker.server.log import LEVELS, Libraries, NodeLog, structured
from clusterbroker.broker.server.options import NAME, ServerOptions
from clusterbroker.broker.server.scheduling import shorten_slices
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.server.supervisor import Supervisor
from clusterbroker.broker.server.tls import BadCertificate, Chain, watch

if TYPE_CHECKING:
    from clusterbroker.broker.server.foreman_desk import ForemanDesk
    from clusterbroker.broker.server.foreman_process import ForemanProcess
    from clusterbroker.broker.server.management import ManagementProcess

QUICK = {"name", "data_dir", "amqp", "log.level"}


def quick_options(flags: dict[str, Any]) -> tuple[ServerOptions, str, str] | None:
    """Options, log level and format from flags alone; None when file or environment have a say, or when a flag
    is wrong: then `broker.config` decides and explains."""
    given = {name: value for name, value in flags.items() if value is not None}
    prefix = "CLUSTERBROKER_"
    if not given.keys() <= QUICK or any(name.upper().startswith(prefix) for name in os.environ):
        return None
    level = given.get("log.level", "info")
    name = given.get("name", "node")
    if level not in LEVELS or NAME.fullmatch(name) is None:
        return None
    try:
        listen = tuple(address(text) for text in given.get("amqp", "127.0.0.1:5672").split(","))
    except ValueError:
        return None
    data_dir = Path(given.get("data_dir", "clusterbroker-data"))
    return ServerOptions(data_dir=data_dir, amqp=listen, node=NodeOptions(name=name)), level, "console"


def run(flags: dict[str, Any], config: Path | None) -> int:
    """The exit code."""
    quick = quick_options(flags) if config is None else None
    unread: list[str] = []
    if quick is None:
        from clusterbroker.broker.config import ConfigError, load, unread_variables

        try:
            loaded = load(config, flags)
            quick = loaded.options(), loaded.log.level, loaded.log.format
            unread = unread_variables()
        except ConfigError as error:
            unconfigured(error)
            return 2
    options, level, form = quick
    log = NodeLog(structured(form, options.node.name), level)
    sayer = Sayer(form, options.node.name)
    for what in unread:
        log.emit("warning", "node.unread_variable", what=what)
    try:
        return _lives(options, log, sayer, form, level)
    except Exception as error:
        return sayer.crashed(error)


def _lives(options: ServerOptions, log: NodeLog, sayer: Sayer, form: str, level: str) -> int:
    """All lives of the node in this process; the exit code."""
    beside: ManagementProcess | None = None
    if options.http or options.https:
        try:
            options, beside = _with_management(options, log, form, level)
        except (OSError, BadCertificate) as error:
            return sayer.ended(error, 1)
    foreman = _foreman(options, log, form, level) if options.pools_file is not None else None
    supervisor = Supervisor()
    while (code := _run_on_loop(_serve(options, log, beside, foreman, supervisor, sayer))) == BEGIN_AGAIN:
        _forget_former_life()
        log.emit("info", "node.begins_again")
        supervisor.notify("STATUS=begins again in its cluster")
        options = replace(options, drain_ends_at_start=False)  # an operator may have drained it since it was started
    return code


def _with_management(
    options: ServerOptions, log: NodeLog, form: str, level: str
) -> tuple[ServerOptions, ManagementProcess]:
    """Takes the HTTP addresses before anybody else hears of this start. Raises OSError, BadCertificate."""
    from clusterbroker.broker.server.management import (  # a node without it does not pay for it
        ManagementProcess,
        settings,
    )

    assert options.data_dir is not None, "a node that is started has a data directory"
    directory = options.data_dir.absolute()
    beside = ManagementProcess(options.node.name, directory, log, settings(options, form, level))
    if options.https_tls is not None:
        Chain(options.https_tls)  # what the process could not use is told before it is started
    beside.bind(options.http, options.https)
    return replace(options, http=beside.addresses, https=beside.tls_addresses, management=True), beside


def _foreman(options: ServerOptions, log: NodeLog, form: str, level: str) -> ForemanProcess:
    from clusterbroker.broker.server.foreman_process import ForemanProcess  # a node without pools does not pay for it

    assert options.data_dir is not None, "a node that is started has a data directory"
    assert options.pools_file is not None, "the file with its templates"
    words = ["--log-format", form, "--log-level", level]
    if options.worker_authorities is not None:
        words += ["--authorities", str(options.worker_authorities.absolute())]
    directory = options.data_dir.absolute() / "workers"
    return ForemanProcess(options.node.name, directory, options.pools_file, log, words)


def _desk(shell: NodeShell, foreman: ForemanProcess) -> ForemanDesk:
    from clusterbroker.broker.server.foreman_desk import ForemanDesk

    desk = ForemanDesk(shell, foreman)
    desk.begin()
    return desk


BEGIN_AGAIN = -1
"""The cluster has taken the node for dead: it closes everything and starts anew, as a new incarnation."""


SWITCH_INTERVAL_S = 1e-4
"""How soon the loop's thread gets the interpreter back from one that reads or makes a checkpoint (default: 5 ms)."""


def _run_on_loop(main: Coroutine[Any, Any, int]) -> int:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(
    options: ServerOptions,
    log: NodeLog,
    beside: ManagementProcess | None,
    foreman: ForemanProcess | None,
    supervisor: Supervisor,
    sayer: Sayer,
) -> int:
    """One life of the node. The processes beside it live on when another one follows."""
    companions = [one for one in (beside, foreman) if one is not None]
    for one in companions:
        if one.pid is not None:
            one.begin(asyncio.get_running_loop())
    code = 1
    try:
        code = await _live(options, log, beside, foreman, supervisor, sayer)
    finally:
        for one in companions:
            if code == BEGIN_AGAIN:
                one.pause()
            else:
                await one.end()
    return code


async def _live(
    options: ServerOptions,
    log: NodeLog,
    beside: ManagementProcess | None,
    foreman: ForemanProcess | None,
    supervisor: Supervisor,
    sayer: Sayer,
) -> int:
    loop = asyncio.get_running_loop()
    supervisor.pulse(loop)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    descriptors = raise_descriptor_limit()
    shell = NodeShell(options, log)
    if options.tls is not None:  # also while it waits for others: else the signal would end it
        loop.add_signal_handler(signal.SIGHUP, reload_certificates, shell)
    try:
        if not await _started(shell, told):
            log.emit("info", "node.stopped", why="told to stop before it was ready")
            return 0
    except Restart:
        return BEGIN_AGAIN
    except Exception as error:
        if not isinstance(error, _expected()):
            raise
        return sayer.ended(error, int(getattr(error, "exit_code", 1)))
    listening = [f"{listener.protocol} {where}" for listener in shell.listeners for where in listener.addresses]
    if beside is not None:
        listening += [f"http {where}" for where in beside.addresses]
        listening += [f"https {where}" for where in beside.tls_addresses]
        if beside.pid is None:
            beside.begin(loop)
    if foreman is not None and foreman.pid is None:
        identity = shell.storage.parts.identity
        foreman.cluster = identity.cluster_id or identity.disk_id
        foreman.begin(loop)
    desk = None if foreman is None else _desk(shell, foreman)
    sayer.listening(listening)
    supervisor.notify("READY=1", f"STATUS={options.node.name}: clients are accepted")
    _quiet_collector()
    shorten_slices()
    log.emit("info", "node.ready", name=options.node.name, data_dir=str(options.data_dir), descriptors=descriptors)
    taking = loop.create_task(_take_queues(shell, log)) if options.drain_ends_at_start else None
    watching = loop.create_task(watch(chains(shell), log.emit))
    stopping, leaving = loop.create_task(told.wait()), loop.create_task(shell.retired.wait())
    await asyncio.wait((stopping, leaving, shell.ended), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    leaving.cancel()
    watching.cancel()
    if taking is not None:
        taking.cancel()
    failure = shell.ended.result() if shell.ended.done() else None
    if failure is None:
        log.emit("info", "node.stopping")
    if not isinstance(failure, Restart):
        supervisor.notify("STOPPING=1")
    if desk is not None:
        desk.end()
    for companion in (beside, foreman):
        if companion is not None:
            companion.pause()  # who stops the node may have told it as well: that is no reason for another
    await shell.stop()
    if isinstance(failure, Restart):
        return BEGIN_AGAIN
    if failure is not None:
        return sayer.ended(failure, int(getattr(failure, "exit_code", 1)))
    log.emit("info", "node.stopped")
    return 0


async def _started(shell: NodeShell, told: asyncio.Event) -> bool:
    """False: it was told to stop while it waited for others, or for its disk. Raises what `start` raises."""
    loop = asyncio.get_running_loop()
    starting, stopping = loop.create_task(shell.start()), loop.create_task(told.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        if starting.cancelled():
            return False
    starting.result()
    return True


async def _take_queues(shell: NodeShell, log: NodeLog) -> None:
    """Ends the drain that came before the node's last end, if there was one."""
    if shell.cluster is not None and shell.cluster.draining:
        from clusterbroker.broker.server.control.cluster_operations import CLUSTER
        from clusterbroker.broker.server.control.operations import Refused

        try:
            await CLUSTER["drain"](shell, {"undo": True})
        except Refused as error:
            log.emit("warning", "cluster.stays_drained", why=str(error))


def _expected() -> tuple[type[Exception], ...]:
    """What keeps a node from starting without being a mistake of ours."""
    from clusterbroker.cluster.errors import ClusterError
    from clusterbroker.journal.errors import JournalError

    return JournalError, ClusterError, OSError, ValueError


def _forget_former_life() -> None:
    """What a node that begins again leaves behind is full of cycles, and most of it is frozen. The next life may end
    before it is ready, so this is the time: there is no lease to keep while 10,000 queues are looked at."""
    import gc

    gc.unfreeze()
    gc.collect()


def _quiet_collector() -> None:
    """What lives now lives on, and is not looked at again."""
    import gc

    gc.freeze()
    look_seldom()


JSON: Final = "json"


class Sayer:
    """Of one process."""

    def __init__(self, form: str, name: str) -> None:
        self._form = form
        self._name = name
        self._tell = structured(form, name)
        if form == JSON:
            logging.basicConfig(handlers=[Libraries(self._tell, "node.library")], level=logging.WARNING)
            logging.captureWarnings(True)

    def listening(self, where: Sequence[str]) -> None:
        """Clients are accepted at these: "amqp 127.0.0.1:5672"."""
        if self._form == JSON:
            _tell = structured(JSON, self._name, sys.stdout)
            _tell("info", "node.listening", {"at": list(where)})
            sys.stdout.flush()
            return
        for line in (*where, "ready"):
            print(line, flush=True)

    def ended(self, why: object, code: int) -> int:
        """The process ends for that; the exit code."""
        if isinstance(why, OSError) and why.filename is None and why.strerror:
            why = why.strerror  # without Python's "[Errno 98]"
        if self._form == JSON:
            self._tell("critical", "node.ended", {"why": str(why), "code": code})
        else:
            print(f"clusterbroker: {why}", file=sys.stderr)
        return code

    def crashed(self, error: Exception) -> int:
        """A mistake of ours ended the process; the exit code, or it is raised again for people to read."""
        if self._form != JSON:
            raise error
        self._tell("critical", "node.ended", {"why": repr(error), "code": 1, "exc_info": error})
        return 1


def unconfigured(why: object) -> None:
    """The settings cannot be read, so what the environment says of the format counts."""
    form = os.environ.get("CLUSTERBROKER_LOG__FORMAT", "")
    Sayer(form, os.environ.get("CLUSTERBROKER_NAME", "")).ended(why, 2)
