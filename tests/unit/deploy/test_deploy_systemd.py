"""The systemd unit: systemd itself takes it, and what it says of the node is so."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.broker.server.shell import GOODBYE_S, HAND_OVER_S
from clusterbroker.broker.server.storage import SETTLE_S
from clusterbroker.journal.errors import DamagedJournal, JournalFailed
from tests.unit.deploy.commands import checked

UNIT = Path(__file__).resolve().parents[3] / "deploy" / "systemd" / "clusterbroker.service"


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)  # SystemCallFilter comes several times
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_it(tmp_path: Path) -> None:
    program = tmp_path / "clusterbroker"  # systemd wants to see what it shall start
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/clusterbroker/bin/clusterbroker", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_its_command_is_one_of_ours(service: configparser.SectionProxy) -> None:
    program, *words = service["ExecStart"].split()
    assert program.endswith("/clusterbroker")
    checked(words)
    assert "--config" in words
    assert service["Type"] == "notify", "broker/server/supervisor.py says READY=1"


def test_a_reload_reads_the_certificates_of_this_node_anew(service: configparser.SectionProxy) -> None:
    program, *words = service["ExecReload"].split()
    assert program == service["ExecStart"].split()[0]
    checked(words)
    assert words[0] == "reload-certificates"
    started = service["ExecStart"].split()
    assert words[words.index("--data-dir") + 1] == started[started.index("--data-dir") + 1]


def test_it_waits_for_as_long_as_a_node_may_take_to_stop(service: configparser.SectionProxy) -> None:
    stop_grace_s = 3 + 1
    assert int(service["TimeoutStopSec"].removesuffix("s")) > HAND_OVER_S + stop_grace_s + SETTLE_S + GOODBYE_S


def test_what_does_not_heal_is_not_started_again(service: configparser.SectionProxy) -> None:
    codes = set(map(int, service["RestartPreventExitStatus"].split()))
    assert codes == {2, DamagedJournal.exit_code, JournalFailed.exit_code}
    assert getattr(Unstarted, "exit_code", 1) not in codes, "who cannot join now may do so later"
