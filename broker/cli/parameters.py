"""What users give on the command line: names with their completion, KEY=VALUE, passwords, bodies of messages."""

from __future__ import annotations

import base64
import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from clusterbroker.broker.cli import complete
from clusterbroker.broker.cli.exit_codes import USAGE, Failed

BODY_BYTES_MAX: Final = 48 << 20
"""Of a message; the management API takes bodies of 64 MiB, and base64 is a third longer."""
PASSWORD_BYTES_MAX: Final = 4096
SECONDS: Final = "SECONDS"
SECONDS_MAX: Final = 1_000_000
"""Eleven days: a socket waits no longer than twice that."""

Vhost = Annotated[str, typer.Option("--vhost", help="The virtual host.", autocompletion=complete.vhosts)]
OfVhost = Annotated[
    str | None, typer.Option("--vhost", help="Only of this virtual host.", autocompletion=complete.vhosts)
]
VhostName = Annotated[str, typer.Argument(metavar="VHOST", autocompletion=complete.vhosts)]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=complete.queues)]
QueueNames = Annotated[list[str], typer.Argument(metavar="QUEUE...", autocompletion=complete.queues)]
ExchangeName = Annotated[
    str, typer.Argument(metavar="EXCHANGE", help="amq.default: the default one.", autocompletion=complete.exchanges)
]
UserName = Annotated[str, typer.Argument(metavar="USER", autocompletion=complete.users)]
NodeName = Annotated[str, typer.Argument(metavar="NODE", autocompletion=complete.nodes)]
Arguments = Annotated[
    list[str] | None,
    typer.Option("--argument", "-a", metavar="KEY=VALUE", help="VALUE: JSON, else text (repeatable)."),
]
RoutingKey = Annotated[str, typer.Option("--routing-key", "-k", help="Of the binding, or of the message.")]
Durable = Annotated[bool, typer.Option("--durable/--transient", help="Survives a restart, or not.")]
AutoDelete = Annotated[bool, typer.Option("--auto-delete", help="Deleted after its last user.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="No question at a terminal.")]
OfUser = Annotated[str | None, typer.Option("--of", help="Only of this user.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing one.")]


def duration(about: str, least: float = 0, **more: Any) -> Any:
    """An option that is a duration: `wait: Annotated[float, duration("What for.")] = 5.0` is shown as `--wait SECONDS`.
    Parts of a second are taken, from `least` up to SECONDS_MAX. `more`: as of typer.Option."""
    return typer.Option(help=about, min=least, max=SECONDS_MAX, callback=_a_number, **{"metavar": SECONDS, **more})


def _a_number(value: float | None) -> float | None:
    """Refuses nan, which is within any bounds, and never over. BadParameter."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is no duration.")
    return value


def table(pairs: list[str] | None, what: str = "--argument") -> dict[str, Any]:
    """KEY=VALUE as a table. Failed (USAGE)."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Failed(f"{what} '{pair}' is not KEY=VALUE", USAGE)
        found[key] = value_of(value)
    return found


def value_of(text: str) -> Any:
    """JSON, or the text itself when it is none (NaN and the like are none)."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def json_of(text: str, what: str) -> Any:
    """JSON. Failed (USAGE)."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, RecursionError) as error:
        raise Failed(f"{what} is not JSON: {error}", USAGE) from None


def object_of(text: str, what: str) -> dict[str, Any]:
    """A JSON object. Failed (USAGE)."""
    found = json_of(text, what)
    if not isinstance(found, dict):
        raise Failed(f'{what} is not a JSON object like {{"max-length": 1000}}', USAGE)
    return found


def new_password(given: str | None, of: str) -> str:
    """A password for somebody: as given, typed twice at a terminal, or the first line of standard input.
    Failed (USAGE)."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        return str(typer.prompt(f"Password for {of}", hide_input=True, confirmation_prompt=True, err=True))
    password = sys.stdin.readline(PASSWORD_BYTES_MAX).rstrip("\r\n")
    if not password:
        raise Failed("the password is empty: type it, or give it as the first line of standard input", USAGE)
    return password


def body(text: str | None, file: Path | None) -> bytes:
    """A message's body: the word of the command line, a file, or standard input. Failed (USAGE)."""
    if text is not None and file is not None:
        raise Failed("say the body or --file, not both", USAGE)
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    try:
        if file is None or str(file) == "-":
            found = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
        else:
            with file.open("rb") as opened:
                found = opened.read(BODY_BYTES_MAX + 1)
    except OSError as error:
        raise Failed(f"--file {file}: {error.strerror}", USAGE) from None
    if len(found) > BODY_BYTES_MAX:
        raise Failed(f"a body sent this way has {BODY_BYTES_MAX >> 20} MiB at most: use an AMQP client", USAGE)
    return found


def payload(raw: bytes) -> dict[str, str]:
    """How a body travels in JSON."""
    try:
        return {"payload": raw.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(raw).decode(), "payload_encoding": "base64"}


def sure(question: str, yes: bool) -> None:
    """Asks a person at a terminal whether this shall be; a script is taken at its word."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise typer.Exit(1)
