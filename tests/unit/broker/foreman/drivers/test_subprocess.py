"""Driver subprocess: what only processes of this machine have. What all drivers have in common: test_contract.py."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from foreman_support import PLACE, spec, until
from worlds import enterable

from clusterbroker.broker.foreman.drivers import subprocess as driver_module
from clusterbroker.broker.foreman.drivers.port import DriverError
from clusterbroker.broker.foreman.drivers.records import Record, begun_ticks, boot_id, processes_of
from clusterbroker.broker.foreman.drivers.subprocess import Subprocesses
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.templates import Template

ROOT = {"user": "root"} if os.geteuid() == 0 else {}


def shell(script: str, *arguments: str, **more: object) -> Template:
    return msgspec.convert(
        {"driver": "subprocess", "command": ["/bin/sh", "-c", script, "sh", *arguments], **ROOT, **more}, Template
    )


@pytest_asyncio.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Subprocesses]:
    made = Subprocesses(PLACE, tmp_path / "workers")
    yield made
    for seen in await made.list():
        await made.kill(seen.worker_id)
    await until(lambda: all_over(made))
    await made.close()


async def all_over(driver: Subprocesses) -> bool:
    return all(seen.state is State.EXITED for seen in await driver.list())


async def row(driver: Subprocesses, worker_id: str = "w1-0") -> Seen | None:
    return next((seen for seen in await driver.list() if seen.worker_id == worker_id), None)


async def over(driver: Subprocesses, worker_id: str = "w1-0") -> Seen:
    async def ended() -> Seen | None:
        seen = await row(driver, worker_id)
        return seen if seen is not None and seen.state is State.EXITED else None

    found: Seen = await until(ended)
    return found


def content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def written(path: Path) -> str:
    async def there() -> str:
        return content(path)

    text: str = await until(there, str(path))
    return text


async def test_the_whole_group_ends_and_children_that_left_it(driver: Subprocesses, tmp_path: Path) -> None:
    script = (
        f"(trap '' TERM; sleep 600) & setsid sleep 600 & echo $$ > {tmp_path}/up; trap 'exit 0' TERM; sleep 600 & wait"
    )
    await driver.start(spec(), shell(script))
    await written(tmp_path / "up")

    async def all_four() -> bool:
        return len(processes_of(PLACE.prefix, "w1-0")) >= 4

    await until(all_four)
    await driver.stop("w1-0", 30)
    assert (await over(driver)).exit == 0
    assert processes_of(PLACE.prefix, "w1-0") == [], "a worker leaves no process behind, whatever it forked"


async def test_an_exit_status_is_that_of_a_shell(driver: Subprocesses) -> None:
    await driver.start(spec("w1-0"), shell("exit 70"))
    await driver.start(spec("w1-1"), shell("kill -9 $$"))
    assert ((await over(driver, "w1-0")).exit, (await over(driver, "w1-1")).exit) == (70, 137)


async def test_a_stopped_worker_hears_term(driver: Subprocesses, tmp_path: Path) -> None:
    await driver.start(spec(), shell(f"trap 'exit 5' TERM; echo $$ > {tmp_path}/up; while :; do sleep 0.05; done"))
    os.kill(int(await written(tmp_path / "up")), signal.SIGSTOP)
    await driver.stop("w1-0", 1)
    assert (await over(driver)).exit == 5


async def test_peak_memory_is_told(driver: Subprocesses, tmp_path: Path) -> None:
    """Also by a foreman that is larger than its worker, as this process may be: its own memory is the fork's."""
    script = f"import os, time; held = bytearray(64 << 20)\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)"
    template = msgspec.convert({"driver": "subprocess", "command": [sys.executable, "-c", script], **ROOT}, Template)
    await driver.start(spec(), template)

    async def grown() -> bool:
        return (await driver.list())[0].memory_bytes > 64 << 20

    await until(grown, "its memory is seen")
    (tmp_path / "go").touch()
    assert (await over(driver)).peak_bytes > 64 << 20


async def test_what_is_kept_of_the_output_is_bounded(driver: Subprocesses, tmp_path: Path) -> None:
    await driver.start(spec(), shell("yes 0123456789 | head -c 4000000; echo the end", output_bytes_max=64 << 10))
    await over(driver)
    kept = sorted((tmp_path / "workers").glob("w1-0.log*"))
    assert sum(path.stat().st_size for path in kept) <= 64 << 10
    assert (tmp_path / "workers" / "w1-0.log").read_text().endswith("the end\n"), "the newest is what is kept"


async def test_limits_are_set_before_the_program_begins(driver: Subprocesses, tmp_path: Path) -> None:
    script = f"import resource; open('{tmp_path}/said', 'w').write(repr(resource.getrlimit(resource.RLIMIT_NOFILE)))"
    template = msgspec.convert(
        {"driver": "subprocess", "command": [sys.executable, "-c", script], "files_max": 77, **ROOT}, Template
    )
    await driver.start(spec(), template)
    await over(driver)
    assert (tmp_path / "said").read_text() == "(77, 77)"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 77, "and only there"


async def test_a_program_that_is_not_there_is_told_and_leaves_nothing(driver: Subprocesses) -> None:
    missing = msgspec.convert({"driver": "subprocess", "command": ["/not/there"], **ROOT}, Template)
    with pytest.raises(DriverError, match=r"w1-0: '/not/there' cannot be started.*see \[pools.core\]"):
        await driver.start(spec(), missing)
    assert await driver.list() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_worker_whose_end_nobody_would_see_is_killed(
    driver: Subprocesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file descriptor is left when it runs."""
    opened = os.pidfd_open

    def full(pid: int, flags: int = 0) -> int:
        monkeypatch.setattr(os, "pidfd_open", opened)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    with pytest.raises(DriverError, match="Too many open files"):
        await driver.start(spec(), shell("sleep 600 & sleep 600"))
    assert processes_of(PLACE.prefix, "w1-0") == []
    assert await driver.list() == ()


async def test_root_only_by_setting_and_other_users(driver: Subprocesses, tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="would run as root"):
        await driver.start(spec(), msgspec.structs.replace(shell("true"), user=""))
    with pytest.raises(DriverError, match="no user 'nobody-there'"):
        await driver.start(spec(), msgspec.structs.replace(shell("true"), user="nobody-there"))
    open_to_all = tmp_path / "said"
    open_to_all.touch()
    open_to_all.chmod(0o666)
    enterable(tmp_path)
    await driver.start(
        spec(), msgspec.structs.replace(shell(f"id -un > {open_to_all}; id -G >> {open_to_all}"), user="nobody")
    )
    await over(driver)
    user, groups = open_to_all.read_text().split("\n", 1)
    assert user == "nobody"
    assert "0" not in groups.split(), "and none of root's groups"


# -- adoption ---------------------------------------------------------------------------------------------------------


async def test_a_later_foreman_adopts_what_runs(driver: Subprocesses, tmp_path: Path) -> None:
    await driver.start(
        spec(), shell(f"echo $$ > {tmp_path}/up; trap 'exit 3' TERM; while :; do sleep 0.05; echo line; done")
    )
    pid = int(await written(tmp_path / "up"))
    child = driver._running["w1-0"].child
    assert child is not None
    await driver.close()
    later = Subprocesses(PLACE, tmp_path / "workers")
    seen = await row(later)
    assert seen is not None
    assert (seen.state, seen.cluster, seen.place, seen.pool) == (State.RUNNING, "c1u5ter", "node1", "core")
    await later.start(spec(), shell("echo a second one; exit 1"))
    assert processes_of(PLACE.prefix, "w1-0")[0] == pid, "a second start of an id is none"
    await later.stop("w1-0", 30)
    await asyncio.to_thread(os.waitpid, pid, 0)  # its parent is this test, and not init
    assert (await over(later)).exit is None, "nobody but its parent hears the exit status"
    await later.close()


async def test_a_worker_that_ended_meanwhile_is_over(driver: Subprocesses, tmp_path: Path) -> None:
    await driver.start(spec(), shell("exit 5"))
    assert (await over(driver)).exit == 5
    record = driver._records.read("w1-0")
    assert record is not None
    driver._records.write(msgspec.structs.replace(record, exited=False, pid=os.getpid(), begun_ticks=1))
    later = Subprocesses(PLACE, tmp_path / "workers")
    seen = await row(later)
    assert seen is not None
    assert seen.state is State.EXITED, "this process has the number, and began at another time"
    await later.close()


@pytest.mark.parametrize("runs", [True, False])
async def test_a_foreman_that_died_between_fork_and_record(tmp_path: Path, runs: bool) -> None:
    directory = tmp_path / "workers"
    first = Subprocesses(PLACE, directory)
    first._records.begin(
        Record(
            worker_id="w9-9", cluster="c1u5ter", place="node1", pool="core", generation=1, version="v", key_hash="",
            boot=boot_id(),
        )
    )  # fmt: skip
    await first.close()
    child = None
    if runs:
        child = subprocess.Popen(  # noqa: ASYNC220
            ["sleep", "600"], env={"WORKER_ID": "w9-9", "WORKER_PLACE": PLACE.prefix}, start_new_session=True
        )
    later = Subprocesses(PLACE, directory)
    seen = await row(later, "w9-9")
    assert seen is not None
    assert seen.state is (State.RUNNING if runs else State.EXITED)
    if child is not None:
        record = later._records.read("w9-9")
        assert record is not None
        assert (record.pid, record.begun_ticks) == (child.pid, begun_ticks(child.pid))
        await later.kill("w9-9")
        child.wait()
        await over(later, "w9-9")
    await later.close()


async def test_a_record_of_another_boot_is_over(driver: Subprocesses, tmp_path: Path) -> None:
    driver._records.begin(
        Record(
            worker_id="w9-9", cluster="c1u5ter", place="node1", pool="core", generation=1, version="v", key_hash="",
            boot="another", pid=os.getpid(), begun_ticks=begun_ticks(os.getpid()) or 0,
        )
    )  # fmt: skip
    later = Subprocesses(PLACE, tmp_path / "workers")
    seen = await row(later, "w9-9")
    assert seen is not None
    assert (seen.state, seen.why) == (State.EXITED, "its machine was started anew")
    await later.close()


async def test_a_directory_that_cannot_be_read_is_unknown(driver: Subprocesses, tmp_path: Path) -> None:
    (tmp_path / "workers").rename(tmp_path / "away")
    with pytest.raises(DriverError, match="must be able to write there"):
        await driver.list()
    (tmp_path / "away").rename(tmp_path / "workers")


async def test_linux_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver_module.sys, "platform", "darwin")
    with pytest.raises(DriverError, match="needs Linux"):
        Subprocesses(PLACE, tmp_path)


@pytest.mark.parametrize(
    ("events", "why"), [("oom 1\noom_kill 1\n", "out of memory"), ("oom 1\noom_kill 0\n", ""), ("", "")]
)
def test_a_cgroup_says_that_the_kernel_ended_something_for_its_memory(tmp_path: Path, events: str, why: str) -> None:
    """Its file as cgroup v2 has it: this machine may have none."""
    (tmp_path / "memory.events").write_text(events)
    assert driver_module._leave_cgroup(tmp_path) == why
