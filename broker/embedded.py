"""A real node inside your process, for tests: `with Broker() as b:` and `b.url` is a broker (waits).

The blocking form runs the node on a loop of its own, in a thread of its own. The asynchronous form runs it on the
loop that is running. Either way it is the node that `clusterbroker start` runs, on a free port of 127.0.0.1, with
the user guest/guest, and without a data directory in memory only. With a directory it keeps everything, so that a
test may `stop` it, `start` it again and find its durable messages.

Differences from the command: without `http` no control socket, a small journal, no memory alarm (the memory is your
process's), and clients that have not gone when it stops are cut after a moment. It logs to the `logging` logger
"clusterbroker".
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from clusterbroker.broker.boot_definitions import BootDefinitions
from clusterbroker.broker.extras import is_there, wanting
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.log import NodeLog, library
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.journal.options import MIB, JournalOptions

if TYPE_CHECKING:
    from clusterbroker.broker.embedded_pools import PoolGiven, PoolPlan, Workers
    from clusterbroker.broker.server.management import ManagementProcess

T = TypeVar("T")

START_TIMEOUT_S = 30.0


class Broker:
    """A node to test against.

    data_dir   where to keep wiring and messages; None: nowhere
    port       0 takes a free one at the first start and keeps it for later ones
    definitions   what shall be there from the start: a file, or the document itself, as RabbitMQ's definitions
    pools      worker pools of the vhost "/": name -> a class of `clusterbroker_workers`, "module:Class", or the
               command of a worker as a list, whose processes the broker starts and ends; or settings as `clusterbroker
               pools set` has them, with "worker" or "command" (and "environment", "directory") among them. Without
               these, workers come by themselves
    http       whether the management API is served as well, by a process of its own, at `http_url`
    limits     fields of `broker.node.options.NodeOptions`, e.g. heartbeat_s=1, message_bytes_max=1000
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        name: str = "embedded",
        definitions: str | Path | Mapping[str, Any] | None = None,
        pools: Mapping[str, PoolGiven] | None = None,
        http: bool = False,
        http_port: int = 0,
        **limits: Any,
    ) -> None:
        self.host = host
        self.port = port
        """Where it listens; 0 until the first start."""
        self.http_port = http_port
        """Where the management API is; 0 until the first start."""
        if http and not is_there("fastapi"):
            raise ModuleNotFoundError(wanting("Broker(http=True)", "FastAPI", "server"))
        self._http = http
        self._beside: ManagementProcess | None = None
        self._private: Path | None = None
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._name = name
        self._definitions = definitions
        self._pools = _planned(pools) if pools else []
        self._workers: Workers | None = None
        known = {field.name for field in fields(NodeOptions)}
        if unknown := limits.keys() - known:
            raise TypeError(f"Broker() has no limit {min(unknown)!r}: choose of {', '.join(sorted(known))}")
        self._limits = limits
        self._shell: NodeShell | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Broker {self.host}:{self.port} {'running' if self.running else 'stopped'}>"

    @property
    def running(self) -> bool:
        return self._shell is not None

    @property
    def url(self) -> str:
        """For clients: user, password, address and the vhost "/"."""
        return self.vhost_url("")

    def vhost_url(self, vhost: str) -> str:
        """The URL of another vhost."""
        assert self.port, "the broker has not been started yet: use `with Broker() as b` or call start()"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp://guest:guest@{host}:{self.port}/{quote(vhost, safe='')}"

    @property
    def http_url(self) -> str:
        """Where the management API begins; user and password are guest, guest."""
        assert self._http, "made without the management API: Broker(http=True)"
        assert self.http_port, "the broker has not been started yet: use `with Broker(http=True) as b` or call start()"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.http_port}"

    # -- blocking ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when clients are accepted."""
        assert self._shell is None, "the broker runs already"
        self._loop = loop = _new_loop()
        self._thread = threading.Thread(target=_run, args=(loop,), name="clusterbroker", daemon=True)
        self._thread.start()
        try:
            self._call(self.start_async())
        except BaseException:
            self._end_thread()
            raise
        return self

    def stop(self) -> None:
        """Closes all clients; with a data directory everything durable is on disk. May be called again."""
        if self._loop is None:
            return
        self._call(self.stop_async(), self._workers.end_s if self._workers is not None else 0.0)
        self._end_thread()

    def _call(self, work: Coroutine[Any, Any, T], more_s: float = 0.0) -> T:
        assert self._loop is not None, "there is a loop while the broker runs"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S + more_s)

    def _end_thread(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    # -- asynchronous -----------------------------------------------------------------------------------------

    async def start_async(self) -> Self:
        """The same on the running loop."""
        options = replace(_options(), data_dir=self._data_dir, amqp=(Address(self.host, self.port),))
        options = replace(options, node=replace(options.node, name=self._name, **self._limits))
        options = replace(options, definitions=await asyncio.to_thread(self._boot_definitions))
        log = NodeLog(library(), "debug")
        if self._http:
            options = self._with_management(options, log)
        shell = NodeShell(options, log)
        try:
            await shell.start()
        except BaseException:
            await self._end_management()
            raise
        self.port = shell.listeners[0].addresses[0].port
        self._shell = shell
        try:
            await self._begin_pools(shell, log)
        except BaseException:
            await self.stop_async()
            raise
        if self._beside is not None:
            self._beside.begin(shell.loop)
        return self

    async def _begin_pools(self, shell: NodeShell, log: NodeLog) -> None:
        if not self._pools:
            return
        from clusterbroker.broker import embedded_pools

        await embedded_pools.declared(shell, self._pools)
        if any(plan.template is not None for plan in self._pools):
            self._workers = embedded_pools.Workers(self._pools, self._data_dir)
            self._workers.begin(shell, log)

    def _boot_definitions(self) -> BootDefinitions | None:
        given = self._definitions
        if given is None:
            return None
        if isinstance(given, Mapping):
            return BootDefinitions.of(dict(given), "definitions")
        return BootDefinitions.read(Path(given))

    def _with_management(self, options: ServerOptions, log: NodeLog) -> ServerOptions:
        import tempfile

        from clusterbroker.broker.server.management import ManagementProcess, settings

        directory = self._data_dir
        if directory is None:
            directory = self._private = Path(tempfile.mkdtemp(prefix="clusterbroker-"))
        words = settings(options, "console", "info")
        self._beside = ManagementProcess(self._name, directory.absolute(), log, words)
        self._beside.bind((Address(self.host, self.http_port),))
        self.http_port = self._beside.addresses[0].port
        return replace(
            options, http=self._beside.addresses, control=True, control_dir=directory.absolute(), management=True
        )

    async def _end_management(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            await beside.end()
        private, self._private = self._private, None
        if private is not None:
            with contextlib.suppress(OSError):
                private.rmdir()

    async def stop_async(self) -> None:
        """The same on the running loop."""
        shell, self._shell = self._shell, None
        workers, self._workers = self._workers, None
        try:
            if workers is not None:
                await workers.end()  # they finish and answer what they hold, while there is a broker
        finally:
            if shell is not None:
                await shell.stop()
            await self._end_management()

    async def __aenter__(self) -> Self:
        return await self.start_async()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.stop_async()

    # -- for tests that want trouble --------------------------------------------------------------------------

    def set_alarm(self, name: str, raised: bool) -> None:
        """Raises "memory" or "disk" (publishers are blocked), or takes it back. From any thread."""
        shell = self._shell
        assert shell is not None, "the broker runs"
        shell.loop.call_soon_threadsafe(shell.alarms.set, name, "test", raised)

    def close_connections(self, reason: str = "closed by the test") -> None:
        """Closes every client's connection with 320, as an operator would. From any thread."""
        shell = self._shell
        assert shell is not None, "the broker runs"

        def close() -> None:
            for connection in tuple(shell.node.clients.values()):
                connection.force_close(reason)
            shell.schedule()

        shell.loop.call_soon_threadsafe(close)


def _planned(pools: Mapping[str, PoolGiven]) -> list[PoolPlan]:
    from clusterbroker.broker.embedded_pools import planned  # a broker without pools does not pay for it

    return planned(pools)


def _options() -> ServerOptions:
    return ServerOptions(
        journal=JournalOptions(segment_bytes=MIB, checkpoint_bytes=4 * MIB, reserve_bytes=0, map_bytes=1 << 34),
        alarms=AlarmOptions(memory_fraction=0.0, disk_free_bytes=0),
        stop_grace_s=0.02,
        control=False,
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
