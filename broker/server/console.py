"""Log lines for a console.

Strangers choose much of the text on a reader's terminal: user names of refused logins, names of queues, a library's
words about a request. Unprintable characters therefore never reach a line as they are (`broker.visible`), tracebacks
included, whose texts would otherwise begin lines of their own.
"""

from __future__ import annotations

import io
from typing import Any, Final, TextIO

import structlog

from clusterbroker.broker.visible import visible

INDENT: Final = "    "


def renderer(colors: bool) -> Any:
    """The last of structlog's processors. Tracebacks have no local variables: passwords and hashes are among them."""
    drawn = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback)

    def render(logger: Any, method: str, event: Any) -> Any:
        return drawn(logger, method, {_shown(name): _shown(value) for name, value in event.items()})

    return render


def _shown(value: Any) -> Any:
    """Strings are written out; of other values structlog draws the repr, which has nothing but what prints."""
    return visible(value) if isinstance(value, str) and not value.isprintable() else value


def _traceback(out: TextIO, exc_info: Any) -> None:
    """No line of it begins where lines of the log begin, whatever the exception's text is."""
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    for line in plain.getvalue().strip().splitlines():
        out.write(f"\n{INDENT}{_shown(line)}")
