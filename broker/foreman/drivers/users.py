"""Whose rights a worker has: never root's by oversight.

A driver finds out the user that its service will really give the worker, and asks `check_root`. Root is allowed by the
template that names it, and by nothing else.
"""

from __future__ import annotations

import pwd

from clusterbroker.broker.foreman.drivers.port import DriverError
from clusterbroker.broker.foreman.templates import Template

ROOT = "root"


def names_root(user: str) -> bool:
    """Whether "NAME", "NUMBER" or one of them with ":GROUP" is root by its text. No user is: that is what images and
    units mean by it. Another name for the number 0 is not seen."""
    name = user.partition(":")[0]
    try:
        return int(name) == 0
    except ValueError:
        return name in ("", ROOT)


def uid_of(driver: str, user: str) -> int:
    """Of a user of this machine, by name or number. Raises DriverError."""
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise DriverError(f"{driver}: there is no user '{user}': make one, or name another") from None


def check_root(template: Template, as_root: bool, why: str = "") -> None:
    """Raises DriverError where a worker would run as root and its template does not name root. `as_root`: it would;
    `why`: more of that."""
    named = template.user.partition(":")[0]
    if as_root and not (named and names_root(named)):
        raise DriverError(
            f'{template.driver}: the worker would run as root{why}: say user = "NAME" in its template, or "root"'
        )
