"""Whose rights a worker has: never root's by oversight."""

from __future__ import annotations

import os

from clusterbroker.broker.foreman.drivers.port import DriverError
from clusterbroker.broker.foreman.templates import Template


def check_root(template: Template, as_root: bool | None = None) -> None:
    """Raises DriverError where a worker would run as root and its template does not say so. `as_root`: whether root is
    who starts it; None: the foreman does."""
    if (os.geteuid() == 0 if as_root is None else as_root) and not template.user:
        raise DriverError(
            f'{template.driver}: the worker would run as root: say user = "NAME" in its template, or "root"'
        )
