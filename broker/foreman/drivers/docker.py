"""Driver `docker`: a worker is a container of any daemon with Docker's API: dockerd, `podman system service`.

    start     create (name = prefix and worker id, so a second one is refused) -> its user is not root, or its template
              says so -> start
    its end   the container stays, with its exit status, until it is removed

TERM goes to the container's first process, KILL ends all. What was created and not started by this foreman is of one
that died in between: it counts as ended. The user is that of the container, which has its image's where the template
names none: so no image can be another one than was looked at. Variables of a container can be read by all who may use
the daemon, and who may do that is root of its machine anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import aiodocker
import aiohttp
from aiodocker.exceptions import DockerError

from clusterbroker.broker.foreman.drivers.port import (
    CLUSTER,
    PLACE,
    POOL,
    TEMPLATE,
    WORKER,
    Capacity,
    DriverError,
    Place,
    labels,
)
from clusterbroker.broker.foreman.drivers.users import check_root, names_root
from clusterbroker.broker.foreman.reconcile import OUT_OF_MEMORY, Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec, check, secrets, told
from clusterbroker.broker.foreman.templates import Template

RUNNING: Final = frozenset(("running", "paused", "stopping", "removing"))
NEW: Final = frozenset(("created", "configured", "initialized", "restarting"))
"""`configured` and `initialized`: podman's words."""
PULL_S: Final = 600.0
ABSENT: Final = 404
CONFLICT: Final = 409


class Containers:
    """Of one daemon. Connects with the first call."""

    name = "docker"
    shared = False

    def __init__(self, place: Place, socket: str) -> None:
        """`socket`: unix:// or tcp:// address; empty: as aiodocker finds it."""
        self._place = place
        self._socket = socket
        self._docker: aiodocker.Docker | None = None
        self._starting: set[str] = set()
        self._ended: dict[str, Seen] = {}

    def _client(self) -> aiodocker.Docker:
        if self._docker is None:
            try:
                self._docker = aiodocker.Docker(url=self._socket or None)
            except (ValueError, OSError) as error:
                raise DriverError(f"docker: {self._socket or 'no daemon was found'}: {error}: set socket") from error
        return self._docker

    def _error(self, what: str, error: Exception) -> DriverError:
        if isinstance(error, DockerError):
            return DriverError(f"docker: {what}: {error.message}")
        return DriverError(
            f"docker: {what}: {self._socket or 'the daemon'} cannot be reached: {error}: is it at work,"
            " and may the node's user use it?"
        )

    def _name(self, worker_id: str) -> str:
        return f"{self._place.prefix}-{worker_id}"

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self, spec: WorkerSpec, template: Template) -> None:
        check(spec)
        if spec.worker_id in self._starting:
            return  # a daemon has the name of a container before it has the container
        self._starting.add(spec.worker_id)
        try:
            if (found := await self._found(spec.worker_id)) is None:
                await self._create(spec, template)
                found = await self._found(spec.worker_id)
            if found is None:
                raise DriverError(f"docker: start {spec.worker_id}: its container is not there yet: it is tried again")
            if found["State"]["Status"] in NEW:
                await self._check_user(spec.worker_id, template, found)
                await self._client().containers.container(self._name(spec.worker_id)).start()
        except (DockerError, aiohttp.ClientError, OSError) as error:
            raise self._error(f"start {spec.worker_id}", error) from error
        finally:
            self._starting.discard(spec.worker_id)

    async def _check_user(self, worker_id: str, template: Template, found: Any) -> None:
        """Raises DriverError for one that would be root unsaid; it is not left."""
        user = str(found["Config"].get("User") or "")
        try:
            check_root(template, names_root(user), "" if template.user else f", as the image {template.image} says")
        except DriverError:
            await self._client().containers.container(self._name(worker_id)).delete(force=True)
            raise

    async def _found(self, worker_id: str) -> Any | None:
        """None: there is none of this name."""
        try:
            return await self._client().containers.get(self._name(worker_id))
        except DockerError as error:
            if error.status == ABSENT:
                return None
            raise

    async def _state(self, worker_id: str) -> str | None:
        """None: there is none of this name."""
        found = await self._found(worker_id)
        return None if found is None else str(found["State"]["Status"])

    async def _create(self, spec: WorkerSpec, template: Template) -> None:
        config = _config(self._place, spec, template)
        name = self._name(spec.worker_id)
        try:
            await self._client().containers.create(config, name=name)
        except DockerError as error:
            if error.status == CONFLICT or "already in use" in error.message:  # podman: 500
                return
            if error.status != ABSENT or template.pull == "never":
                hint = ': load it, or say pull = "missing"' if error.status == ABSENT else ""
                raise DriverError(f"docker: start {spec.worker_id}: {error.message}{hint}") from error
            async with asyncio.timeout(PULL_S):
                await self._client().images.pull(template.image)
            await self._client().containers.create(config, name=name)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def stop(self, worker_id: str, grace_s: float) -> None:  # noqa: ARG002 - the foreman sends KILL
        await self._signal(worker_id, "TERM")

    async def kill(self, worker_id: str) -> None:
        await self._signal(worker_id, "KILL")

    async def _signal(self, worker_id: str, name: str) -> None:
        try:
            if await self._state(worker_id) in RUNNING:
                await self._client().containers.container(self._name(worker_id)).kill(signal=name)
        except DockerError as error:
            if error.status not in (ABSENT, CONFLICT) and await self._still_runs(worker_id):
                raise self._error(f"{name} to {worker_id}", error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._error(f"{name} to {worker_id}", error) from error

    async def _still_runs(self, worker_id: str) -> bool:
        """It may have ended between look and signal, and daemons have several words for that."""
        return await self._state(worker_id) in RUNNING

    async def remove(self, worker_id: str) -> None:
        try:
            if await self._state(worker_id) in (None, *RUNNING):
                return
            await self._client().containers.container(self._name(worker_id)).delete(force=True)
        except DockerError as error:
            if error.status not in (ABSENT, CONFLICT):
                raise self._error(f"remove {worker_id}", error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._error(f"remove {worker_id}", error) from error
        self._ended.pop(worker_id, None)

    async def list(self) -> tuple[Seen, ...]:
        wanted = {"label": [f"{name}={value}" for name, value in self._place.labels.items()]}
        try:
            found = await self._client().containers.list(all=True, filters=wanted)
            rows = [await self._row(one) for one in found]
        except (DockerError, aiohttp.ClientError, OSError) as error:
            raise self._error("list", error) from error
        return tuple(row for row in rows if row is not None)

    async def _row(self, one: Any) -> Seen | None:
        told_labels: dict[str, str] = one["Labels"]
        worker_id = told_labels.get(WORKER, "")
        facts = told_labels[CLUSTER], told_labels[PLACE], told_labels.get(POOL, "")
        template, state = told_labels.get(TEMPLATE, ""), one["State"]
        if state in RUNNING:
            return Seen(worker_id, State.RUNNING, *facts, template=template)
        if state in NEW:
            if worker_id in self._starting:
                return Seen(worker_id, State.STARTING, *facts, template=template)
            return Seen(worker_id, State.EXITED, *facts, why="the foreman died before it was started")
        if worker_id not in self._ended:
            try:
                end = (await one.show())["State"]
            except DockerError as error:
                if error.status == ABSENT:
                    return None
                raise
            why = OUT_OF_MEMORY if end.get("OOMKilled") else str(end.get("Error") or "")
            self._ended[worker_id] = Seen(worker_id, State.EXITED, *facts, int(end["ExitCode"]), why=why)
        return self._ended[worker_id]

    async def watch(self) -> AsyncIterator[str]:
        """Raises DriverError when the daemon ends the stream."""
        events: Any = self._client().events
        try:
            subscribed = events.subscribe(
                filters=aiodocker.utils.clean_filters(
                    {"type": ["container"], "label": [f"{CLUSTER}={self._place.cluster}"]}
                )
            )
            while (event := await subscribed.get()) is not None:
                yield str(event.get("Actor", {}).get("Attributes", {}).get(WORKER, ""))
        except (DockerError, aiohttp.ClientError, OSError) as error:
            raise self._error("events", error) from error
        finally:
            await events.stop()
        raise DriverError("docker: events: the daemon ended them")

    async def capacity(self) -> Capacity:
        try:
            info = await self._client().system.info()
        except (DockerError, aiohttp.ClientError, OSError) as error:
            raise self._error("info", error) from error
        return Capacity(memory_bytes=int(info.get("MemTotal", 0)) or None)

    async def close(self) -> None:
        if self._docker is not None:
            await self._docker.close()
            self._docker = None


def _config(place: Place, spec: WorkerSpec, template: Template) -> dict[str, Any]:
    variables = template.variables({}) | told(spec) | secrets(spec, own_network=template.network != "host")
    host: dict[str, Any] = {
        "NetworkMode": template.network,
        "Privileged": False,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "SecurityOpt": ["no-new-privileges"],
    }
    if template.mounts:
        host["Binds"] = list(template.mounts)
    if template.memory_bytes:
        host["Memory"] = host["MemorySwap"] = template.memory_bytes
    if template.cpus:
        host["NanoCpus"] = int(template.cpus * 1e9)
    if template.processes_max:
        host["PidsLimit"] = template.processes_max
    limits = (("nofile", template.files_max), ("core", template.core_bytes))
    if named := [{"Name": name, "Soft": value, "Hard": value} for name, value in limits if value]:
        host["Ulimits"] = named
    config: dict[str, Any] = {
        "Image": template.image,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": labels(place, spec),
        "HostConfig": host,
    }
    if template.command:
        config["Cmd"] = template.arguments(spec.key)
    if template.user:
        config["User"] = template.user
    if template.directory:
        config["WorkingDir"] = template.directory
    return config
