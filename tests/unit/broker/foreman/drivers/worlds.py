"""Each driver beside what it drives, for the contract suite: the real thing, or the reason why it is not here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from clusterbroker.broker.foreman.drivers.noop import Noop
from clusterbroker.broker.foreman.drivers.port import Driver, Place
from clusterbroker.broker.foreman.templates import Template
from tests.support import daemons

ROOT = {"user": "root"} if os.geteuid() == 0 else {}


@dataclass(frozen=True, slots=True)
class World:
    """`made`: a driver for a place, as each foreman makes one. `files`: a directory that workers write to."""

    name: str
    made: Callable[[Place], Driver]
    facts: dict[str, Any]
    files: Path
    runs: bool = True
    """Whether a start runs anything."""
    outlives: bool = True
    """Whether another driver knows what one has started."""
    keeps_exit: bool = True
    """Whether another driver knows the exit status."""

    def template(self, script: str, *arguments: str, **more: Any) -> Template:
        """A worker that is a shell script."""
        command = ["/bin/sh", "-c", script, "sh", *arguments]
        return msgspec.convert({"command": command, **self.facts, **more}, Template)


Start = Callable[[Path], tuple[daemons.Daemon, str]]
Build = Callable[[Path, Path, ExitStack], World]


def enterable(directory: Path) -> None:
    """For all users: pytest makes directories that only their owner may enter, several deep with several processes."""
    for path in (directory, *directory.parents):
        mode = path.stat().st_mode
        if mode & 0o011 != 0o011:
            path.chmod(mode | 0o011)


@contextmanager
def world(name: str, directory: Path) -> Iterator[World]:
    """Raises daemons.Missing."""
    files = directory / "files"
    files.mkdir()
    files.chmod(0o777)
    with ExitStack() as ends:
        yield WORLDS[name](directory, files, ends)


def _noop(directory: Path, files: Path, ends: ExitStack) -> World:
    return World("noop", Noop, {"driver": "noop"}, files, runs=False, outlives=False)


def _subprocess(directory: Path, files: Path, ends: ExitStack) -> World:
    from clusterbroker.broker.foreman.drivers.subprocess import Subprocesses

    def made(place: Place) -> Driver:
        return Subprocesses(place, directory / place.prefix)

    return World("subprocess", made, {"driver": "subprocess", **ROOT}, files, keeps_exit=False)


def _systemd(bus: str, start: Start) -> Build:
    def build(directory: Path, files: Path, ends: ExitStack) -> World:
        from clusterbroker.broker.foreman.drivers.systemd import Units

        daemon, address = start(directory)
        ends.callback(daemon.end)

        def made(place: Place) -> Driver:
            return Units(place, directory / place.prefix, bus, address)

        return World("systemd", made, {"driver": "systemd", "bus": bus, **ROOT}, files)

    return build


def _containers(start: Start) -> Build:
    def build(directory: Path, files: Path, ends: ExitStack) -> World:
        from clusterbroker.broker.foreman.drivers.docker import Containers

        daemon, address = start(directory)
        ends.callback(daemons.clear, directory / "graph")
        ends.callback(daemon.end)
        daemons.load_image(Path(address.removeprefix("unix://")))
        facts = {
            "driver": "docker", "image": daemons.IMAGE, "socket": address, "network": "host",
            "mounts": [f"{files}:{files}"], "user": "0",
        }  # fmt: skip
        return World("docker", lambda place: Containers(place, address), facts, files)

    return build


def _kubernetes(directory: Path, files: Path, ends: ExitStack) -> World:
    from clusterbroker.broker.foreman.drivers.kubernetes import Pods

    found, config = daemons.kubernetes(directory)
    for daemon in found:
        ends.callback(daemon.end)
    facts = {"driver": "kubernetes", "image": "none", "kubeconfig": str(config), "user": "root"}
    return World("kubernetes", lambda place: Pods(place, str(config), "default"), facts, files)


WORLDS: dict[str, Build] = {
    "noop": _noop,
    "subprocess": _subprocess,
    "systemd": _systemd("user", daemons.systemd_user),
    "systemd_system": _systemd("system", daemons.systemd_system),
    "podman": _containers(daemons.podman),
    "dockerd": _containers(daemons.dockerd),
    "kubernetes": _kubernetes,
}
