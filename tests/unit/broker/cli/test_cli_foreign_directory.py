"""A data directory of another user: its owner is named, and what to do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterbroker.broker.cli.exit_codes import FAILED, NOT_ALLOWED
from clusterbroker.broker.cli.main import app

NOBODY = 65534


@pytest.fixture
def directory() -> Iterator[Path]:
    """Of root, beside those of pytest, which nobody may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user for a moment")
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        (inner := Path(made) / "data").mkdir(mode=0o700)
        yield inner


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status", "--data-dir"], NOT_ALLOWED),
        (["queues", "--data-dir"], NOT_ALLOWED),
        (["queues", "list", "--data-dir"], NOT_ALLOWED),
        (["users", "list", "--data-dir"], NOT_ALLOWED),
        (["rescue", "--data-dir"], NOT_ALLOWED),
        (["journal", "ls"], NOT_ALLOWED),
        (["journal", "check"], NOT_ALLOWED),
        (["health", "--data-dir"], FAILED),  # whatever is wrong
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_its_owner_is_named(directory: Path, words: list[str], code: int) -> None:
    given = [*words, str(directory)]
    CliRunner().invoke(app, given)  # what it imports, the other user may not read
    os.seteuid(NOBODY)
    try:
        done = CliRunner().invoke(app, given)
    finally:
        os.seteuid(0)
    said = f"clusterbroker: {directory} belongs to another user: sudo -u root clusterbroker"
    assert (done.exit_code, done.stderr[: len(said)]) == (code, said)
