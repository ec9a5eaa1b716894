"""Driver `systemd`: a worker is a transient unit, or an instance of a template unit, of the system's or the user's
manager.

    start     record (O_EXCL) and environment file (0600) -> StartTransientUnit, or StartUnit("core@NAME.service")
              NAME: prefix of cluster and node, and the id of the launch, as the environment file has it
    its end   the unit is `exited`, `failed` or `dead` -> record (exit status) -> StopUnit, which ends what its main
              process left behind -> ResetFailedUnit

Variables reach the unit in a file that only the node's user may read: what a unit's properties say, every user may
read. A worker lives in the manager's hands: it goes on when foreman and node end, and the next foreman finds it by its
record. Its user is its unit file's, where that has one; else the template's at the system's manager, and the manager's
own at a user's, which cannot change it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
from dbus_fast import BusType, Message, MessageType, Variant
from dbus_fast.aio import MessageBus
from dbus_fast.errors import DBusError

from clusterbroker.broker.foreman.drivers.port import Capacity, DriverError, Place
from clusterbroker.broker.foreman.drivers.records import Record, Records, boot_id
from clusterbroker.broker.foreman.drivers.users import check_root, uid_of
from clusterbroker.broker.foreman.reconcile import OUT_OF_MEMORY, Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec, check, secrets, told
from clusterbroker.broker.foreman.templates import PROPERTIES, Template

NAME: Final = "org.freedesktop.systemd1"
PATH: Final = "/org/freedesktop/systemd1"
MANAGER: Final = f"{NAME}.Manager"
SERVICE: Final = f"{NAME}.Service"
UNIT: Final = f"{NAME}.Unit"
BUS: Final = "org.freedesktop.DBus"
OF_ALL: Final = "org.freedesktop.DBus.Properties"
KINDS: Final[dict[type, str]] = {int: "t", bool: "b", str: "s"}
SIGNATURES: Final = {"Nice": "i", "OOMScoreAdjust": "i"}
"""Properties whose numbers are not unsigned 64-bit ones."""
EXITED: Final = 1
"""ExecMainCode: CLD_EXITED of waitid(2)."""
NO_NUMBER: Final = (1 << 64) - 1
CANNOT_EXEC: Final = 203
NEEDS_NO_ESCAPE: Final = re.compile(r"[a-z0-9-]+")
"""But for the hyphen."""
OVER: Final = frozenset(("exited", "failed", "dead"))


class Units:
    """Connects with the first call, and anew when the manager began anew."""

    name = "systemd"
    shared = False

    def __init__(self, place: Place, directory: Path, bus: str, address: str = "") -> None:
        """`bus`: system or user. `address`: of the bus, empty: as D-Bus finds it. Raises DriverError."""
        self._place = place
        self._kind = bus
        self._address = address
        self._bus: MessageBus | None = None
        self._connecting = asyncio.Lock()
        self._changed: asyncio.Queue[str] = asyncio.Queue()
        self._peaks: dict[str, int] = {}
        try:
            self._records = Records(directory)
        except OSError as error:
            raise DriverError(
                f"systemd: {directory}: {error.strerror}: the node must be able to write there"
            ) from error
        self._boot = boot_id()

    # -- the bus ------------------------------------------------------------------------------------------------------

    async def _connected(self) -> MessageBus:
        async with self._connecting:
            if self._bus is None or not self._bus.connected:
                self._bus = await self._connect()
        return self._bus

    async def _connect(self) -> MessageBus:
        """Raises DriverError."""
        kind = BusType.SYSTEM if self._kind == "system" else BusType.SESSION
        try:
            bus = await MessageBus(bus_address=self._address or None, bus_type=kind).connect()
        except (OSError, DBusError, ValueError, EOFError) as error:
            raise DriverError(
                f"systemd: the {self._kind} bus cannot be reached: {error}: is its manager at work"
                f" (loginctl enable-linger for a user without a session)?"
            ) from error
        bus.add_message_handler(self._heard)
        rule = f"type='signal',sender='{NAME}',interface='{OF_ALL}',path_namespace='{PATH}/unit'"
        try:
            await _asked(bus, "AddMatch", "s", [rule], PATH, BUS, BUS)
            await _asked(bus, "Subscribe")
        except BaseException:
            bus.disconnect()
            raise
        return bus

    def _heard(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL and message.member == "PropertiesChanged":
            self._changed.put_nowait("")

    async def _call(self, member: str, signature: str = "", body: list[Any] | None = None, *where: str) -> Any:
        """The first value of the answer. Raises DriverError."""
        return await _asked(await self._connected(), member, signature, body, *where)

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self, spec: WorkerSpec, template: Template) -> None:
        check(spec)
        unit = self._unit(spec.worker_id, template)
        await self._check_user(template, unit)
        record = Record.of(spec, self._place, self._boot, unit=unit)
        try:
            if not self._records.begin(record):
                return
            variables = template.variables(self._place.environment) | told(spec) | secrets(spec)
            file = self._variables(spec.worker_id)
            _write_private(file, "".join(f"{name}={_quoted(value)}\n" for name, value in variables.items()))
        except OSError as error:
            raise DriverError(
                f"systemd: {self._records.directory}: {error.strerror}: the node must be able to write there"
            ) from error
        try:
            if template.unit:
                await self._call("StartUnit", "ss", [unit, "fail"])
            else:
                await self._call(
                    "StartTransientUnit", "ssa(sv)a(sa(sv))", [unit, "fail", _facts(spec, template, file), []]
                )
        except _Refused as refused:
            if not refused.exists:
                self._forget(spec.worker_id)
                raise
        self._changed.put_nowait(spec.worker_id)

    def _name(self, worker_id: str) -> str:
        """Of all workers that a manager has, whosever they are, this one's."""
        return f"{self._place.prefix}-{worker_id}"

    def _unit(self, worker_id: str, template: Template) -> str:
        name = self._name(worker_id)
        return template.unit.replace("@.", f"@{escaped(name)}.") if template.unit else f"{name}.service"

    def _variables(self, worker_id: str) -> Path:
        """Named as the unit's instance is, so that a unit file can name it (%I)."""
        return self._records.directory / f"{self._name(worker_id)}.env"

    def _forget(self, worker_id: str) -> None:
        """Raises OSError."""
        self._variables(worker_id).unlink(missing_ok=True)
        self._records.remove(worker_id)

    async def _check_user(self, template: Template, unit: str) -> None:
        """Raises DriverError where the worker would have another user than its template says, or be root unsaid."""
        own = int(await self._call("GetConnectionUnixUser", "s", [NAME], "/org/freedesktop/DBus", BUS, BUS))
        if template.unit:
            await self._check_unit(template, unit, own)
            return
        wanted = _uid(template.user) if template.user else own
        if wanted != own and template.bus == "user":
            raise DriverError(
                f"systemd: a user's manager cannot start workers as '{template.user}':"
                ' say bus = "system", or leave user out'
            )
        check_root(template, wanted == 0)

    async def _check_unit(self, template: Template, unit: str, own: int) -> None:
        path = await self._call("LoadUnit", "s", [unit])
        state = (await self._call("Get", "ss", [UNIT, "LoadState"], path, OF_ALL)).value
        if state != "loaded":
            raise DriverError(f"systemd: {template.unit}: {state}: its manager must have it: see systemctl cat")
        facts = await self._facts(path)
        named = str(facts.get("User", ""))
        if template.user and template.user != named and (named or _uid(template.user) != own):
            raise DriverError(
                f"systemd: {template.unit} has User={named}, and its template user = '{template.user}':"
                " write the same in that file, or leave user out"
            )
        dynamic = template.bus == "system" and facts.get("DynamicUser")  # a user's manager has none
        check_root(template, not dynamic and (_uid(named) if named else own) == 0)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def stop(self, worker_id: str, grace_s: float) -> None:  # noqa: ARG002 - the foreman sends KILL
        await self._signal(worker_id, 15)

    async def kill(self, worker_id: str) -> None:
        await self._signal(worker_id, 9)

    async def _signal(self, worker_id: str, number: int) -> None:
        record = self._read(worker_id)
        if record is None or record.exited:
            return
        try:
            await self._call("KillUnit", "ssi", [record.unit, "all", number])
        except _Refused as refused:
            if not refused.absent:
                raise

    async def remove(self, worker_id: str) -> None:
        record = self._read(worker_id)
        if record is None or not record.exited:
            return
        try:
            self._forget(worker_id)
        except OSError as error:
            raise DriverError(f"systemd: {self._records.directory}: {error.strerror}: it must be writable") from error
        self._peaks.pop(worker_id, None)

    async def list(self) -> tuple[Seen, ...]:
        await self._connected()
        try:
            records = [record for worker_id in self._records.ids() if (record := self._records.read(worker_id))]
        except OSError as error:
            raise DriverError(f"systemd: {self._records.directory}: {error.strerror}: it must be readable") from error
        names = [record.unit for record in records if not record.exited]
        units = {row[0]: row for row in await self._call("ListUnitsByNames", "as", [names])} if names else {}
        return tuple([await self._row(record, units.get(record.unit)) for record in records])

    async def _row(self, record: Record, unit: Any) -> Seen:
        """`unit`: (name, description, load state, active state, sub state, followed by, path, ...)."""
        labels = record.cluster or self._place.cluster, record.place or self._place.node, record.pool
        worker_id = record.worker_id
        if not record.exited:
            facts = await self._facts(unit[6]) if unit is not None else {}
            current = facts.get("MemoryCurrent", NO_NUMBER)
            current = 0 if current == NO_NUMBER else current
            peak = facts.get("MemoryPeak", NO_NUMBER)
            peak = max(self._peaks.get(worker_id, 0), current, 0 if peak == NO_NUMBER else peak)
            self._peaks[worker_id] = peak
            pending = unit is not None and unit[7] != 0 and unit[4] == "dead"  # its start is about to be carried out
            if unit is not None and (unit[4] not in OVER or pending):
                state = State.RUNNING if unit[3] == "active" else State.STARTING
                return Seen(worker_id, state, *labels, memory_bytes=current, peak_bytes=peak, template=record.template)
            record = await self._settled(record, facts, peak)
        return Seen(
            worker_id, State.EXITED, *labels, record.exit, peak_bytes=record.peak_bytes, why=record.why,
            template=record.template,
        )  # fmt: skip

    async def _facts(self, path: str) -> dict[str, Any]:
        try:
            found = await self._call("GetAll", "s", [SERVICE], path, OF_ALL)
        except _Refused:
            return {}
        return {name: value.value for name, value in found.items()}

    async def _settled(self, record: Record, facts: dict[str, Any], peak: int) -> Record:
        """Its end is written down; then the manager may forget it."""
        status, code = facts.get("ExecMainStatus"), facts.get("ExecMainCode", 0)
        exit_ = None if not code else status if code == EXITED else 128 + int(status or 0)
        result = facts.get("Result", "")
        why = OUT_OF_MEMORY if result == "oom-kill" else ""
        if exit_ == CANNOT_EXEC:
            why = "the program cannot be executed: see the command of its template"
        settled = msgspec.structs.replace(record, exited=True, exit=exit_, peak_bytes=peak, why=why)
        try:
            self._records.write(settled)
            self._variables(record.worker_id).unlink(missing_ok=True)
        except OSError as error:
            raise DriverError(f"systemd: {self._records.directory}: {error.strerror}: it must be writable") from error
        for member, signature, body in (
            ("StopUnit", "ss", [record.unit, "replace"]),
            ("ResetFailedUnit", "s", [record.unit]),
        ):
            try:
                await self._call(member, signature, body)
            except _Refused as refused:
                if not refused.absent:
                    raise
        return settled

    def _read(self, worker_id: str) -> Record | None:
        try:
            return self._records.read(worker_id)
        except OSError as error:
            raise DriverError(f"systemd: {self._records.directory}: {error.strerror}: it must be readable") from error

    async def watch(self) -> AsyncIterator[str]:
        while True:
            await self._connected()
            yield await self._changed.get()

    async def capacity(self) -> Capacity:
        return Capacity(memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    async def close(self) -> None:
        if self._bus is not None:
            self._bus.disconnect()
            self._bus = None


async def _asked(
    bus: MessageBus,
    member: str,
    signature: str = "",
    body: list[Any] | None = None,
    path: str = PATH,
    interface: str = MANAGER,
    destination: str = NAME,
) -> Any:
    """The first value of the answer. Raises DriverError."""
    asked = Message(
        destination=destination, path=path, interface=interface, member=member, signature=signature, body=body or []
    )
    try:
        answer = await bus.call(asked)
    except (OSError, DBusError, EOFError) as error:
        raise DriverError(f"systemd: {member}: the bus is gone: {error}") from error
    if answer is None:
        raise DriverError(f"systemd: {member}: the bus gave no answer")
    if answer.message_type is MessageType.ERROR:
        raise _Refused(member, answer.error_name or "", str(answer.body[0]) if answer.body else "")
    return answer.body[0] if answer.body else None


class _Refused(DriverError):
    """The manager's own word."""

    def __init__(self, member: str, error_name: str, text: str) -> None:
        super().__init__(f"systemd: {member}: {text or error_name}")
        self.exists = error_name == f"{NAME}.UnitExists"
        self.absent = error_name in (f"{NAME}.NoSuchUnit", f"{NAME}.NoSuchProcess") or "not loaded" in text


def _facts(spec: WorkerSpec, template: Template, file: Path) -> list[list[Any]]:
    """Properties of a transient unit."""
    arguments = template.arguments(spec.key)
    facts: dict[str, Variant] = {
        "Description": Variant("s", f"worker {spec.worker_id} of a pool of clusterbroker"),
        "Type": Variant("s", "exec"),
        "RemainAfterExit": Variant("b", True),  # else the exit status of a success is gone with the unit
        "KillMode": Variant("s", "control-group"),
        # as it stands: $ in an argument, as a key may have it, is else a variable to the manager
        "ExecStartEx": Variant("a(sasas)", [[arguments[0], arguments, ["no-env-expand"]]]),
        "EnvironmentFiles": Variant("a(sb)", [[str(file), False]]),
        "WorkingDirectory": Variant("s", template.directory or "/"),
        "TimeoutStopUSec": Variant("t", int(spec.grace_s * 1e6)),
    }
    if template.user and template.bus == "system":  # at a user's it is that user: `_check_user`
        facts["User"] = Variant("s", template.user)
    if template.memory_bytes:
        facts["MemoryMax"] = Variant("t", template.memory_bytes)
    if template.processes_max:
        facts["TasksMax"] = Variant("t", template.processes_max)
    if template.cpus:
        facts["CPUQuotaPerSecUSec"] = Variant("t", int(template.cpus * 1e6))
    for name, value in template.properties.items():
        facts[name] = Variant(SIGNATURES.get(name, KINDS[PROPERTIES[name]]), value)
    return [[name, value] for name, value in facts.items()]


def _uid(user: str) -> int:
    """Raises DriverError."""
    return uid_of("systemd", user)


def escaped(name: str) -> str:
    """As an instance of a template unit (systemd.unit(5)): %I of the unit is the name."""
    assert NEEDS_NO_ESCAPE.fullmatch(name), "a prefix and an id"
    return name.replace("-", "\\x2d")


def _write_private(file: Path, text: str) -> None:
    """Raises OSError."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)


def _quoted(value: str) -> str:
    """As systemd reads it in an environment file: in double quotes, a line end and all."""
    for character in '\\"`$':
        value = value.replace(character, "\\" + character)
    return f'"{value}"'
