"""Which driver serves a template. Libraries of drivers that nobody configured are not imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clusterbroker.broker.extras import is_there, wanting
from clusterbroker.broker.foreman.drivers.noop import Noop
from clusterbroker.broker.foreman.drivers.port import Driver, DriverError, Place
from clusterbroker.broker.foreman.templates import Template

LIBRARIES = {
    "systemd": ("dbus_fast", "dbus-fast", "systemd"),
    "docker": ("aiodocker", "aiodocker", "docker"),
    "kubernetes": ("kubernetes_asyncio", "kubernetes-asyncio", "kubernetes"),
}
"""Driver -> module, package, extra."""

Endpoint = tuple[str, ...]


def endpoint(template: Template) -> Endpoint:
    """Templates of one endpoint share a driver: its list is one question."""
    match template.driver:
        case "systemd":
            return "systemd", template.bus
        case "docker":
            return "docker", template.socket
        case "kubernetes":
            return "kubernetes", template.kubeconfig, template.namespace
        case other:
            return (other,)


def name_of(where: Endpoint) -> str:
    """As frames and pages call it; of most drivers their name."""
    return "-".join(filter(None, where))


def endpoints(templates: Mapping[str, Template]) -> dict[Endpoint, Template]:
    """Each with one of its templates. Processes are always looked after: they may be left of a template of before."""
    return {("subprocess",): Template(driver="subprocess"), **{endpoint(one): one for one in templates.values()}}


async def made(template: Template, place: Place, directory: Path) -> Driver:
    """`directory`: for what a driver keeps in the node's data directory. Raises DriverError."""
    if template.driver in LIBRARIES:
        module, package, extra = LIBRARIES[template.driver]
        if not is_there(module):
            raise DriverError(wanting(f"the driver {template.driver}", package, extra))
    match template.driver:
        case "noop":
            return Noop(place)
        case "subprocess":
            from clusterbroker.broker.foreman.drivers.subprocess import Subprocesses

            return Subprocesses(place, directory)
        case "systemd":
            from clusterbroker.broker.foreman.drivers.systemd import Units

            return Units(place, directory / "units", template.bus)
        case "docker":
            from clusterbroker.broker.foreman.drivers.docker import Containers

            return Containers(place, template.socket)
        case "kubernetes":
            from clusterbroker.broker.foreman.drivers.kubernetes import Pods

            return Pods(place, template.kubeconfig, template.namespace)
