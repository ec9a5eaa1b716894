"""Short slices, on the kernel that is here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterbroker.broker.server.scheduling import SLICE_NS

ASK = "from clusterbroker.broker.server.scheduling import shorten_slices, slice_of\n"


def in_a_process(script: str) -> str:
    """A process of its own, for the tests' should stay as they are."""
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", ASK + script], capture_output=True, text=True, check=True, cwd=root)
    return done.stdout.strip()


@pytest.fixture
def supported() -> None:
    if in_a_process(f"shorten_slices(); print(slice_of() == {SLICE_NS})") != "True":
        pytest.skip("this kernel has no slices of one's own (Linux 6.12 and later)")


@pytest.mark.usefixtures("supported")
def test_all_threads_and_those_to_come_are_given_short_slices_and_nothing_else_changes() -> None:
    told = in_a_process(
        "import os, threading\n"
        "nice = os.nice(3)\n"
        "done, slices = threading.Event(), []\n"
        "def old():\n"
        "    done.wait()\n"
        "    slices.append(slice_of())\n"
        "one = threading.Thread(target=old); one.start()\n"
        "count = shorten_slices()\n"
        "done.set(); one.join()\n"
        "two = threading.Thread(target=lambda: slices.append(slice_of())); two.start(); two.join()\n"
        "print(count, slices, slice_of(), os.getpriority(os.PRIO_PROCESS, 0) == nice, os.sched_getscheduler(0))\n"
    )
    assert told == f"2 [{SLICE_NS}, {SLICE_NS}] {SLICE_NS} True 0"


@pytest.mark.usefixtures("supported")
def test_a_process_under_another_policy_is_left_alone() -> None:
    told = in_a_process(
        "import os\n"
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n"
        "print(shorten_slices(), os.sched_getscheduler(0) == os.SCHED_BATCH)\n"
    )
    assert told == "0 True"


@pytest.mark.parametrize("where", [("darwin", "x86_64"), ("linux", "z80")])
def test_where_nobody_knows_slices_nothing_is_asked(where: tuple[str, str]) -> None:
    script = (
        "import sys, platform\n"
        f"sys.platform = {where[0]!r}; platform.machine = lambda: {where[1]!r}\n"
        "print(shorten_slices(), slice_of())\n"
    )
    assert in_a_process(script) == "0 None"


def test_a_kernel_that_refuses_costs_nothing() -> None:
    """A system call that is not there, as a sandbox shows it."""
    script = (
        "from clusterbroker.broker.server import scheduling\n"
        "scheduling._CALLS['x86_64'] = scheduling._CALLS['aarch64'] = (100_000, 100_001)\n"
        "print(shorten_slices(), slice_of())\n"
    )
    assert in_a_process(script) == "0 None"
