"""What `clusterbroker start` says beside the log: where it listens (stdout), and why it ended (stderr).

With `log.format = "json"` each line of both streams is one JSON object, for collectors take both for one: where it
listens is one `node.listening`, and an end is a `node.ended`. What libraries and the interpreter have to say becomes a
line as well.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.server.log import Libraries, structured

JSON: Final = "json"


class Sayer:
    """Of one process."""

    def __init__(self, form: str, name: str) -> None:
        self._form = form
        self._name = name
        self._tell = structured(form, name)
        if form == JSON:
            logging.basicConfig(handlers=[Libraries(self._tell, "node.library")], level=logging.WARNING)
            logging.captureWarnings(True)

    def listening(self, where: Sequence[str]) -> None:
        """Clients are accepted at these: "amqp 127.0.0.1:5672"."""
        if self._form == JSON:
            _tell = structured(JSON, self._name, sys.stdout)
            _tell("info", "node.listening", {"at": list(where)})
            sys.stdout.flush()
            return
        for line in (*where, "ready"):
            print(line, flush=True)

    def ended(self, why: object, code: int) -> int:
        """The process ends for that; the exit code."""
        if self._form == JSON:
            self._tell("critical", "node.ended", {"why": str(why), "code": code})
        else:
            print(f"clusterbroker: {why}", file=sys.stderr)
        return code

    def crashed(self, error: Exception) -> int:
        """A mistake of ours ended the process; the exit code, or it is raised again for people to read."""
        if self._form != JSON:
            raise error
        self._tell("critical", "node.ended", {"why": repr(error), "code": 1, "exc_info": error})
        return 1


def unconfigured(why: object) -> None:
    """The settings cannot be read, so what the environment says of the format counts."""
    form = os.environ.get("CLUSTERBROKER_LOG__FORMAT", "")
    Sayer(form, os.environ.get("CLUSTERBROKER_NAME", "")).ended(why, 2)
