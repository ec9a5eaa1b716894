"""URIs of other brokers whose passwords need not stand in the command's words, which everybody on the machine may read.

amqp://USER:PASSWORD@HOST    as it is
amqp://USER@HOST             the password of the option's variable, else a terminal is asked
@FILE                        the URI is the first line of the file; `@-`: of standard input
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import typer

from clusterbroker.broker.cli.exit_codes import USAGE, Failed
from clusterbroker.broker.cli.target import secret_in

HOW: Final = "@FILE: its first line; without a password it is asked for"
_USER_ALONE: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)([^/?#:@]+)@")


def variable(option: str) -> str:
    """Of the environment: CLUSTERBROKER_FROM_PASSWORD, CLUSTERBROKER_TO_PASSWORD, CLUSTERBROKER_MANAGEMENT_PASSWORD,
    CLUSTERBROKER_AMQP_PASSWORD with the password of `--from`, `--to` and so on."""
    return f"CLUSTERBROKER_{option.strip('-').upper()}_PASSWORD"


def uri(given: str, option: str, environment: Mapping[str, str] = os.environ) -> str:
    """The URI with its password. Failed (USAGE)."""
    if given.startswith("@"):
        given = secret_in(Path(given[1:]), option)
    alone = _USER_ALONE.match(given)
    if alone is None:
        return given
    password = environment.get(variable(option))
    if password is None and sys.stdin.isatty():
        password = str(typer.prompt(f"Password of {alone[2]} for {option}", hide_input=True, err=True))
    if password is None:
        raise Failed(f"{option}: the password of '{alone[2]}' is missing: say @FILE, or set {variable(option)}", USAGE)
    return f"{alone[1]}{alone[2]}:{quote(password, safe='')}@{given[alone.end() :]}"
