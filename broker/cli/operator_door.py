"""Operations of the node of a data directory, running or not (waits).

A node that runs in the data directory is called through `control.sock`; of one that is stopped its wiring log answers
(`broker.cli.stopped_node`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from clusterbroker.broker.cli.exit_codes import FAILED, UNREACHABLE, Failed
from clusterbroker.broker.server.control.client import ask


def performed(
    directory: Path,
    operation: str,
    *,
    patience_s: float = 30.0,
    meanwhile: AbstractContextManager[None] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """The answer of the node, or of its wiring log. Failed when it is no.

    `meanwhile`: what is done until the answer is there.
    """
    try:
        with meanwhile or nullcontext():
            answer = ask(directory, operation, arguments, patience_s)
    except TimeoutError:
        raise Failed(
            f"the node has not answered '{operation}' within {patience_s:g} s: look at its log", UNREACHABLE
        ) from None
    except OSError as error:
        raise Failed(f"the node in {directory} cannot be asked: {error.strerror or error}", UNREACHABLE) from None
    if answer is None:
        from clusterbroker.broker.cli.stopped_node import answered

        answer = answered(directory, operation, arguments)
    if not answer.pop("ok"):
        raise Failed(str(answer["error"]), FAILED)
    return answer
