"""Driver `subprocess`: a worker is a process of its own session on this machine (Linux).

    start     record (O_EXCL) -> fork, exec -> record with pid -> pidfd
    its end   pidfd is readable -> its group gets KILL while the leader is not yet reaped, so the group's number is
              nobody else's -> wait4 (exit status, peak memory) -> record

A foreman that begins anew adopts what the records name and still runs; of those the exit status is lost, for they are
not its children. A record without a pid is of a foreman that died between fork and record: the process is looked for
by its variables. `subprocess.Popen` and a pidfd of our own stand in the place of asyncio's subprocess, which reaps the
leader before anybody could end the group.

Its own memory limit is a cgroup's, if one is given; else `memory_bytes` is a promise.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from clusterbroker.broker.foreman.drivers.output import Output
from clusterbroker.broker.foreman.drivers.port import Capacity, DriverError, Place
from clusterbroker.broker.foreman.drivers.records import (
    MARK,
    Record,
    Records,
    begun_ticks,
    belongs,
    boot_id,
    memory,
    processes_of,
)
from clusterbroker.broker.foreman.drivers.users import check_root, uid_of
from clusterbroker.broker.foreman.reconcile import OUT_OF_MEMORY, Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec, check, secrets, told
from clusterbroker.broker.foreman.templates import Template

LIMITS: Final = (
    ("address_space_bytes", resource.RLIMIT_AS),
    ("files_max", resource.RLIMIT_NOFILE),
    ("processes_max", resource.RLIMIT_NPROC),
    ("core_bytes", resource.RLIMIT_CORE),
)
END_S: Final = 1.0
"""How long the end of what is killed may take, until it is left to the system."""
MEMORY_S: Final = 1.0
"""Between two looks at the memory of a process: lists come faster while workers are started."""


@dataclass(slots=True)
class _Running:
    """A process of this or of an earlier foreman."""

    record: Record
    """As on disk, where nobody else writes."""
    pid: int
    pidfd: int
    child: subprocess.Popen[bytes] | None
    """None: an earlier foreman's."""
    output: Output | None = None
    peak_bytes: int = 0
    cgroup: Path | None = None
    floor_bytes: int = 0
    """The kernel counts the fork as the worker's memory until exec: a peak of no more than this is the foreman's
    own."""
    memory_bytes: int = 0
    memory_s: float = -MEMORY_S
    """Loop time of the last look at it."""


class Subprocesses:
    """`open`, then calls; `close` leaves the workers alone."""

    name = "subprocess"
    shared = False

    def __init__(self, place: Place, directory: Path) -> None:
        """`directory`: of the records, in the node's data directory. Raises DriverError."""
        if not sys.platform.startswith("linux"):
            raise DriverError("subprocess: needs Linux (pidfd, /proc): use noop, and start workers by hand")
        self._place = place
        try:
            self._records = Records(directory)
        except OSError as error:
            raise DriverError(_disk(directory, error)) from error
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, _Running] = {}
        self._changed: asyncio.Queue[str] = asyncio.Queue()
        self._boot = boot_id()
        self._adopt()

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self, spec: WorkerSpec, template: Template) -> None:
        check(spec)
        user = _user(template)
        record = Record.of(spec, self._place, self._boot, output_bytes_max=template.output_bytes_max)
        try:
            if not self._records.begin(record):
                return
        except OSError as error:
            raise DriverError(_disk(self._records.directory, error)) from error
        try:
            running = self._spawn(spec, template, user, record)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self._records.remove(spec.worker_id)
            raise DriverError(
                f"subprocess: {spec.worker_id}: '{template.command[0]}' cannot be started: {error}:"
                f" see [pools.{spec.template}]"
            ) from error
        self._running[spec.worker_id] = running
        running.record = msgspec.structs.replace(record, pid=running.pid, begun_ticks=begun_ticks(running.pid) or 0)
        try:
            self._records.write(running.record)
        except OSError:
            pass  # a full disk: the next foreman looks for the process by its variable
        self._watch_process(spec.worker_id, running)
        self._changed.put_nowait(spec.worker_id)

    def _spawn(self, spec: WorkerSpec, template: Template, user: str | None, record: Record) -> _Running:
        """Raises OSError, SubprocessError, ValueError."""
        variables = (
            template.variables(self._place.environment) | told(spec) | secrets(spec) | {MARK: self._place.prefix}
        )
        cgroup = _made_cgroup(template, spec.worker_id)
        writes: int = subprocess.DEVNULL
        output = None
        if self._place.own_output:
            writes = os.dup(2)
        elif template.output_bytes_max:
            fifo = self._records.path(spec.worker_id, ".out")
            os.mkfifo(fifo, 0o600)
            output = Output(self._loop, fifo, self._records.path(spec.worker_id, ".log"), template.output_bytes_max)
            writes = os.open(fifo, os.O_RDWR)  # it reads as well: no SIGPIPE while no foreman reads
        switch: dict[str, Any] = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid}
        if user is not None and os.geteuid() == 0:
            switch["extra_groups"] = os.getgrouplist(user, switch["group"])
        try:
            child = subprocess.Popen(  # noqa: S603 - a list of a config file that nobody else can write
                template.arguments(spec.key),
                cwd=template.directory or "/",
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=writes,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_limiter(template, cgroup),
                **switch,
            )
        except BaseException:
            if output is not None:
                output.close()
            raise
        finally:
            if writes >= 0:
                os.close(writes)
        floor_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        try:
            pidfd = os.pidfd_open(child.pid)
        except OSError:  # no descriptor is left: nobody would see its end
            _signal_group(child.pid, signal.SIGKILL)
            child.wait()
            if output is not None:
                output.close()
            self._end_all(spec.worker_id)
            _leave_cgroup(cgroup)
            raise
        return _Running(record, child.pid, pidfd, child, output, cgroup=cgroup, floor_bytes=floor_bytes)

    # -- adoption -----------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Raises DriverError."""
        try:
            for worker_id in self._records.ids():
                record = self._records.read(worker_id)
                if record is not None and not record.exited:
                    self._adopt_one(record)
        except OSError as error:
            raise DriverError(_disk(self._records.directory, error)) from error

    def _adopt_one(self, record: Record) -> None:
        worker_id = record.worker_id
        if record.boot != self._boot:
            self._over(record, None, 0, "its machine was started anew")
            return
        if not record.pid:
            leader = next((pid for pid in processes_of(self._place.prefix, worker_id) if os.getsid(pid) == pid), None)
            if leader is None:
                self._over(record, None, 0, "the foreman died while it was started")
                return
            record = msgspec.structs.replace(record, pid=leader, begun_ticks=begun_ticks(leader) or 0)
            self._records.write(record)
        try:
            pidfd = os.pidfd_open(record.pid)
        except OSError:
            pidfd = -1
        if pidfd < 0 or begun_ticks(record.pid) != record.begun_ticks:
            if pidfd >= 0:
                os.close(pidfd)
            self._end_all(worker_id)
            self._over(record, None, 0, "it ended while no foreman watched")
            return
        running = _Running(record, record.pid, pidfd, None)
        fifo = self._records.path(worker_id, ".out")
        if fifo.exists():
            running.output = Output(self._loop, fifo, self._records.path(worker_id, ".log"), record.output_bytes_max)
        self._running[worker_id] = running
        self._watch_process(worker_id, running)

    # -- its end ------------------------------------------------------------------------------------------------------

    def _watch_process(self, worker_id: str, running: _Running) -> None:
        self._loop.add_reader(running.pidfd, self._ended, worker_id)

    def _ended(self, worker_id: str) -> None:
        running = self._running.pop(worker_id)
        self._loop.remove_reader(running.pidfd)
        code, peak_bytes = None, running.peak_bytes
        if running.child is not None:
            _signal_group(running.pid, signal.SIGKILL)
            _, status, usage = os.wait4(running.pid, 0)
            running.child.returncode = os.waitstatus_to_exitcode(
                status
            )  # the object knows that nothing is left to reap
            code = _shell_code(running.child.returncode)
            if usage.ru_maxrss << 10 > running.floor_bytes:
                peak_bytes = usage.ru_maxrss << 10
        os.close(running.pidfd)
        self._end_all(worker_id)
        why = _leave_cgroup(running.cgroup)
        if running.output is not None:
            running.output.close()
        try:
            record = self._records.read(worker_id)
            if record is not None:
                self._over(record, code, peak_bytes, why)
        except OSError:
            pass  # the disk is full: the record says that it runs, and the next list looks
        self._changed.put_nowait(worker_id)

    def _end_all(self, worker_id: str) -> None:
        """Processes that left the worker's session, or outlived a leader that was not our child. Blocks until none is
        left, for at most `END_S`: a kill is carried out when its process next runs, and what it forked meanwhile is
        found by another look."""
        end_s = time.monotonic() + END_S
        while killed := self._kill_all(worker_id):
            for pidfd in killed:
                watched = select.poll()
                watched.register(pidfd, select.POLLIN)
                watched.poll(max(0.0, end_s - time.monotonic()) * 1000)
                os.close(pidfd)
            if time.monotonic() >= end_s:
                return

    def _kill_all(self, worker_id: str) -> list[int]:
        """The pidfds of those that were sent KILL."""
        killed = []
        for pid in processes_of(self._place.prefix, worker_id):
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                if belongs(pid, self._place.prefix, worker_id):  # that one still, and not another of the same number
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    killed.append(pidfd)
                    continue
            except OSError:
                pass
            os.close(pidfd)
        return killed

    def _over(self, record: Record, code: int | None, peak_bytes: int, why: str = "") -> None:
        """Raises OSError."""
        self._records.write(msgspec.structs.replace(record, exited=True, exit=code, peak_bytes=peak_bytes, why=why))

    # -- calls --------------------------------------------------------------------------------------------------------

    async def stop(self, worker_id: str, grace_s: float) -> None:  # noqa: ARG002 - the foreman sends KILL
        self._signal(worker_id, signal.SIGTERM)

    async def kill(self, worker_id: str) -> None:
        self._signal(worker_id, signal.SIGKILL)

    def _signal(self, worker_id: str, number: signal.Signals) -> None:
        running = self._running.get(worker_id)
        if running is not None:  # else it is over
            _signal_group(running.pid, number)  # its leader is not reaped, or was there a moment ago (pidfd)
            if number is signal.SIGTERM:
                _signal_group(running.pid, signal.SIGCONT)  # a stopped process hears no TERM
            elif running.cgroup is not None:
                _kill_cgroup(running.cgroup)

    async def remove(self, worker_id: str) -> None:
        if worker_id in self._running:
            return
        try:
            self._records.remove(worker_id)
        except OSError as error:
            raise DriverError(_disk(self._records.directory, error)) from error

    async def list(self) -> tuple[Seen, ...]:
        rows = []
        try:
            for worker_id in self._records.ids():
                running = self._running.get(worker_id)
                record = self._records.read(worker_id) if running is None else running.record
                if record is not None:
                    rows.append(self._row(record))
        except OSError as error:
            raise DriverError(_disk(self._records.directory, error)) from error
        return tuple(rows)

    def _row(self, record: Record) -> Seen:
        running = self._running.get(record.worker_id)
        labels = record.cluster or self._place.cluster, record.place or self._place.node
        if running is None:
            if not record.exited:
                record = msgspec.structs.replace(record, exited=True, why="it ended while the disk was full")
                self._records.write(record)
            return Seen(
                record.worker_id,
                State.EXITED,
                *labels,
                record.pool,
                record.exit,
                peak_bytes=record.peak_bytes,
                why=record.why,
                template=record.template,
            )
        if self._loop.time() >= running.memory_s + MEMORY_S:
            running.memory_s = self._loop.time()
            running.memory_bytes, peak = memory(running.pid)
            running.peak_bytes = max(running.peak_bytes, peak)
        return Seen(
            record.worker_id,
            State.RUNNING,
            *labels,
            record.pool,
            memory_bytes=running.memory_bytes,
            peak_bytes=running.peak_bytes,
            template=record.template,
        )

    async def watch(self) -> AsyncIterator[str]:
        while True:
            yield await self._changed.get()

    async def capacity(self) -> Capacity:
        return Capacity(memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    async def close(self) -> None:
        for running in self._running.values():
            self._loop.remove_reader(running.pidfd)
            os.close(running.pidfd)
            if running.output is not None:
                running.output.close()
            if running.child is not None:
                running.child.returncode = 0  # it runs on: the object does not wait for it
        self._running.clear()


# -- what the system is asked -----------------------------------------------------------------------------------------


def _user(template: Template) -> str | None:
    """The user to change to; None: the node's own. Raises DriverError."""
    own = os.geteuid()
    wanted = uid_of(template.driver, template.user) if template.user else own
    check_root(template, wanted == 0)
    if wanted == own:
        return None
    if own != 0:
        raise DriverError(f"subprocess: only root can start workers as '{template.user}': leave user out")
    return template.user


def _limiter(template: Template, cgroup: Path | None) -> Callable[[], None] | None:
    """Runs in the child between fork and exec; None: nothing is limited."""
    limits = [(number, value) for name, number in LIMITS if (value := getattr(template, name))]
    if not limits and cgroup is None:
        return None

    def limit() -> None:
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text("0")
        for number, value in limits:
            resource.setrlimit(number, (value, value))

    return limit


def _made_cgroup(template: Template, worker_id: str) -> Path | None:
    """Raises OSError."""
    if not template.cgroup:
        return None
    made = Path(template.cgroup) / worker_id
    made.mkdir(exist_ok=True)
    if template.memory_bytes:
        (made / "memory.max").write_text(str(template.memory_bytes))
    return made


def _kill_cgroup(cgroup: Path) -> None:
    try:
        (cgroup / "cgroup.kill").write_text("1")
    except OSError:
        pass  # an older kernel: the group had its signal


def _leave_cgroup(cgroup: Path | None) -> str:
    """OUT_OF_MEMORY if the kernel ended something in it for that."""
    if cgroup is None:
        return ""
    _kill_cgroup(cgroup)
    why = ""
    try:
        events = dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())
        why = OUT_OF_MEMORY if int(events.get("oom_kill", 0)) else ""
    except (OSError, ValueError):
        pass  # no memory controller
    try:
        cgroup.rmdir()
    except OSError:
        pass  # its last process is about to end; the next start of the same id does not come
    return why


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass  # all of it is over
    except PermissionError:
        pass  # a part of it became another user's


def _shell_code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def _disk(directory: Path, error: OSError) -> str:
    return f"subprocess: {directory}: {error.strerror}: the node must be able to write there"
