"""Templates: the sections `[pools.NAME]` of a node's config file, the only place that says what is executed. Whether a
pool is declared with a section is the node's to read (`broker.boot_definitions`).

The wire can choose the name of a template that exists, numbers within its bounds, and a key. A command is a list of
arguments and runs without a shell. `{key}` is replaced where it is a whole argument, nowhere else. A file that other
users may write is refused: they would run programs as the node's user.

The version of a template is a hash of what a worker gets of it. Two nodes with one file agree on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from clusterbroker.broker.foreman.spec import RESERVED, WorkerSpec

KEY: Final = "{key}"
ENV_PASS: Final = ("PATH", "LANG", "TZ")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
UNIT: Final = re.compile(r"[A-Za-z0-9:_.\\-]{1,100}@\.service")
POD_USER: Final = re.compile(r"root|[0-9]{1,10}")
PROPERTIES: Final[dict[str, type]] = {
    "CPUQuotaPerSecUSec": int,
    "CPUWeight": int,
    "IOWeight": int,
    "LimitCORE": int,
    "LimitNOFILE": int,
    "LimitNPROC": int,
    "LockPersonality": bool,
    "MemoryDenyWriteExecute": bool,
    "MemoryHigh": int,
    "MemoryMax": int,
    "MemorySwapMax": int,
    "Nice": int,
    "NoNewPrivileges": bool,
    "OOMScoreAdjust": int,
    "PrivateDevices": bool,
    "PrivateNetwork": bool,
    "PrivateTmp": bool,
    "ProtectClock": bool,
    "ProtectControlGroups": bool,
    "ProtectHome": str,
    "ProtectHostname": bool,
    "ProtectKernelLogs": bool,
    "ProtectKernelModules": bool,
    "ProtectKernelTunables": bool,
    "ProtectSystem": str,
    "RestrictRealtime": bool,
    "RestrictSUIDSGID": bool,
    "Slice": str,
    "TasksMax": int,
}
"""Properties of a unit that a template may set, and their kinds (systemd.exec(5), systemd.resource-control(5))."""

Driver = Literal["noop", "subprocess", "systemd", "docker", "kubernetes"]


class BadTemplate(ValueError):
    """One line: the setting, and what to do."""


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One section `[pools.NAME]`. Sizes in bytes, times in seconds, 0: no limit."""

    driver: Driver = "noop"
    """How workers are run: noop (they come by themselves), subprocess, systemd, docker or kubernetes."""
    command: tuple[str, ...] = ()
    """Program and arguments, a list; run without a shell. The argument "{key}" is the worker's key."""
    directory: str = ""
    """Working directory of a worker; empty: "/", or the image's (docker, kubernetes)."""
    environment: dict[str, str] = {}
    """More variables of a worker; none may begin with WORKER_."""
    env_pass: tuple[str, ...] = ENV_PASS
    """Variables of the node's environment that a worker inherits (subprocess, systemd)."""
    user: str = ""
    """The worker's user; empty: the node's own (subprocess), the manager's (systemd), the image's (docker, kubernetes).
    Root only if it says "root". A number for kubernetes."""
    max_workers: int = 0
    """Workers of this pool at this node; 0: as many as memory allows."""
    memory_bytes: int = 0
    """Promised to each worker, and what counts against the node's memory; a limit where the driver can set one."""
    address_space_bytes: int = 0
    """RLIMIT_AS of a worker (subprocess)."""
    files_max: int = 0
    """RLIMIT_NOFILE of a worker (subprocess)."""
    processes_max: int = 0
    """RLIMIT_NPROC of a worker's user (subprocess); tasks of the unit or container (others)."""
    core_bytes: int = 0
    """RLIMIT_CORE of a worker (subprocess)."""
    cpus: float = 0.0
    """Processors that a worker may use (systemd, docker, kubernetes)."""
    output_bytes_max: int = 1 << 20
    """Kept of a worker's output, in two files of half this size each (subprocess); 0: nothing."""
    on_node_exit: Literal["kill", "keep"] = "kill"
    """Whether workers end with their node's process, or go on and are adopted by the next one (all but kubernetes)."""
    update: Literal["rolling", "none"] = "rolling"
    """Whether workers are replaced one by one when what they run has changed, or go on until they end otherwise."""
    surge: int = 1
    """So many new workers of a key start beside its old ones, above `max` as well; 0: an old one ends first."""
    cgroup: str = ""
    """A cgroup (version 2) that was delegated to the node: each worker gets one below it (subprocess)."""
    properties: dict[str, bool | int | str] = {}
    """More properties of a unit, of those that are allowed (systemd)."""
    unit: str = ""
    """A template unit, "core@.service", in the place of command; its file has its user, directory and limits
    (systemd)."""
    bus: Literal["system", "user"] = "user"
    """The manager that is asked (systemd)."""
    image: str = ""
    """Image of a worker's container (docker, kubernetes)."""
    socket: str = ""
    """Address of the API, "unix:///run/podman/podman.sock"; empty: DOCKER_HOST, or docker's own (docker)."""
    network: str = "bridge"
    """Network of a container (docker)."""
    pull: Literal["never", "missing"] = "never"
    """Whether an image that is not there is fetched (docker, kubernetes)."""
    mounts: tuple[str, ...] = ()
    """Directories of the host in a container, "/data:/data:ro" (docker)."""
    kubeconfig: str = ""
    """File that says where the API server is; empty: that of the pod that the node is in (kubernetes)."""
    namespace: str = "default"
    """Namespace of a worker's pod (kubernetes)."""
    service_account: str = ""
    """Account of a worker's pod; it gets no token of it (kubernetes)."""
    hpa_metric: str = ""
    """External metric of a key's queue, by which an HPA scales its workers; empty: their use of processors
    (kubernetes, scaling = "hpa")."""
    keda_authentication: str = ""
    """TriggerAuthentication by which KEDA reads the management API (kubernetes, scaling = "keda")."""
    declare: bool | dict[str, Any] = False
    """Whether the pool is declared at each start of the node, if there is none of its name: true; or a table with
    its vhost ("/"), its name (the section's) and its settings, which an operator may change later."""

    @property
    def version(self) -> str:
        """16 hexadecimal digits over what a worker gets."""
        told = msgspec.to_builtins(self)
        for name in _NOT_THE_WORKERS:
            del told[name]
        for name in _LATER:
            if not told[name]:
                del told[name]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def arguments(self, key: str) -> list[str]:
        """The command of a worker with this key."""
        return [key if word == KEY else word for word in self.command]

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What of the environment is not the worker's own."""
        return {**{name: inherited[name] for name in self.env_pass if name in inherited}, **self.environment}


_NOT_THE_WORKERS: Final = ("declare", "max_workers", "on_node_exit", "output_bytes_max", "update", "surge")
_LATER: Final = ("hpa_metric", "keda_authentication")
"""Settings that earlier releases do not have: of a template without them all have one version."""

COMMANDED: Final = frozenset(("subprocess", "systemd"))
SCALED: Final = ("kubernetes",)
"""Drivers whose workers something else than the broker may scale."""


def template(name: str, table: Any) -> Template:
    """Raises BadTemplate."""
    where = f"pools.{name}"
    if NAME.fullmatch(name) is None:
        raise BadTemplate(f"{where}: a template's name has letters, digits, _ . and -, 64 at most")
    if not isinstance(table, dict):
        raise BadTemplate(f"{where}: it is a section: write [{where}], and its settings below")
    if isinstance(table.get("command"), str):
        raise BadTemplate(f'{where}.command: it runs without a shell: write a list, ["program", "argument"]')
    try:
        read = msgspec.convert(table, Template)
    except msgspec.ValidationError as error:
        raise BadTemplate(f"{where}: {str(error)[:1].lower()}{str(error)[1:]}") from None
    _check(where, read)
    return read


def _check(where: str, read: Template) -> None:
    for field in msgspec.structs.fields(Template):
        value = getattr(read, field.name)
        if isinstance(value, (int, float)) and value < 0:
            meaning = "an old worker ends first" if field.name == "surge" else "no limit"
            raise BadTemplate(f"{where}.{field.name}: less than 0: 0 means {meaning}")
    texts = [*read.command, *read.environment.values(), read.directory, read.image, read.user]
    if any("\0" in text for text in texts):
        raise BadTemplate(f"{where}: NUL cannot be given to a program")
    for variable in (*read.environment, *read.env_pass):
        if VARIABLE.fullmatch(variable) is None:
            raise BadTemplate(f"{where}: '{variable}' is no name of a variable: letters, digits and _")
        if variable.startswith(RESERVED):
            raise BadTemplate(f"{where}: {variable}: variables that begin with {RESERVED} are set for each worker")
    if read.command and KEY in read.command[0]:
        raise BadTemplate(f"{where}.command: a key cannot be the program: name it, and give {KEY} as an argument")
    if read.unit and (read.driver != "systemd" or UNIT.fullmatch(read.unit) is None):
        raise BadTemplate(f"{where}.unit: a template unit of systemd is written as core@.service")
    if read.driver in COMMANDED and not read.command and not read.unit:
        raise BadTemplate(f"{where}.command: {read.driver} has nothing to run: give it a command")
    if read.driver in ("docker", "kubernetes") and not read.image:
        raise BadTemplate(f"{where}.image: {read.driver} has nothing to run: name an image")
    if read.driver == "kubernetes" and read.user and POD_USER.fullmatch(read.user) is None:
        raise BadTemplate(f'{where}.user: kubernetes knows users by their numbers: write user = "1000", or "root"')
    for name, value in read.properties.items():
        if name not in PROPERTIES:
            raise BadTemplate(f"{where}.properties: {name} is not allowed: use {', '.join(PROPERTIES)}")
        if type(value) is not PROPERTIES[name]:
            raise BadTemplate(f"{where}.properties: {name} is of kind {PROPERTIES[name].__name__}")
    for mount in read.mounts:
        source, _, rest = mount.partition(":")
        if not source.startswith("/") or not rest.startswith("/"):
            raise BadTemplate(f"{where}.mounts: '{mount}' is written as /of/the/host:/in/the/container, :ro behind it")


def templates(table: Any) -> dict[str, Template]:
    """All sections below `[pools]`. Raises BadTemplate."""
    if not isinstance(table, dict):
        raise BadTemplate("pools: it is a section: write [pools.NAME], and its settings below")
    return {name: template(name, section) for name, section in table.items()}


def read_templates(file: Path, uid: int | None = None) -> dict[str, Template]:
    """The templates of a config file that nobody else can change. Raises BadTemplate. `uid`: the process's own."""
    try:
        with open(file, "rb") as opened:
            _check_writers(file, os.fstat(opened.fileno()), os.geteuid() if uid is None else uid)
            read = tomllib.load(opened)
    except OSError as error:
        raise BadTemplate(f"{file}: {error.strerror}: name a TOML file that can be read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadTemplate(f"{file}: not TOML: {error}") from error
    return templates(read.get("pools", {}))


def _check_writers(file: Path, of_file: os.stat_result, uid: int) -> None:
    mode = stat.S_IMODE(of_file.st_mode)
    if mode & 0o022:
        raise BadTemplate(f"{file} says what is executed, and others may write it (mode {mode:04o}): chmod go-w {file}")
    if of_file.st_uid not in (0, uid):
        raise BadTemplate(
            f"{file} says what is executed, and user {of_file.st_uid} owns it: chown it to the node's user"
        )
    folder = file.absolute().parent
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o002 and not mode & stat.S_ISVTX:
        raise BadTemplate(f"{folder} is open to every user, so is {file.name} in it: chmod o-w {folder}")


def fits(spec: WorkerSpec, known: Mapping[str, Template], file: str) -> str:
    """Why this place has no template for a launch; empty: it has."""
    template = known.get(spec.template)
    if template is not None and template.version == spec.version:
        if spec.scale is None or template.driver in SCALED:
            return ""
        return (
            f"the pool has scaling = {spec.scale.by}, and [pools.{spec.template}] in {file} the driver "
            f"{template.driver}: that is for {', '.join(SCALED)}"
        )
    if template is not None:
        return f"[pools.{spec.template}] in {file} is another one than the worker was ordered with: it is ordered anew"
    names = ", ".join(sorted(known)) or "none"
    return (
        f"there is no [pools.{spec.template}] in {file} (there are: {names}): add it, or declare the pool with another"
    )
