"""Records of workers that are processes: one file each, so that a later foreman finds what an earlier one began.

    DIRECTORY/ID.json      begun before the process, so that an id is used once
    DIRECTORY/ID.env       variables, with the credential, for a unit
    DIRECTORY/ID.out       a FIFO: the worker's output while it runs
    DIRECTORY/ID.log, .log.1   what is kept of it

A process is (pid, start time in ticks since boot, boot id): a pid alone is used again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from clusterbroker.broker.foreman.drivers.port import Place
from clusterbroker.broker.foreman.spec import WorkerSpec

PROC: Final = Path("/proc")
MARK: Final = "WORKER_PLACE"
"""The variable that tells a worker's place."""
BOOT: Final = PROC / "sys/kernel/random/boot_id"
ENDINGS: Final = (".json", ".env", ".out", ".log", ".log.1")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. No secrets."""

    worker_id: str
    cluster: str
    place: str
    pool: str
    template: str = ""
    generation: int
    version: str
    key_hash: str
    boot: str
    pid: int = 0
    """0: its start was begun, and nobody wrote down what came of it."""
    begun_ticks: int = 0
    """Of the process, since boot (proc(5), stat, field 22)."""
    output_bytes_max: int = 0
    unit: str = ""
    """Of systemd."""
    exited: bool = False
    exit: int | None = None
    peak_bytes: int = 0
    why: str = ""

    @classmethod
    def of(cls, spec: WorkerSpec, place: Place, boot: str, *, output_bytes_max: int = 0, unit: str = "") -> Record:
        """Of a worker whose start begins here."""
        return cls(
            worker_id=spec.worker_id,
            cluster=place.cluster,
            place=place.node,
            pool=spec.pool,
            template=spec.template,
            generation=spec.generation,
            version=spec.version,
            key_hash=spec.key_hash,
            boot=boot,
            output_bytes_max=output_bytes_max,
            unit=unit,
        )


def boot_id() -> str:
    return BOOT.read_text().strip()


class Records:
    """The files of a directory that belongs to one node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, worker_id: str, ending: str = ".json") -> Path:
        return self.directory / (worker_id + ending)

    def begin(self, record: Record) -> bool:
        """False: there is one of this id. Raises OSError."""
        try:
            made = os.open(self.path(record.worker_id), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with open(made, "wb") as opened:
            opened.write(msgspec.json.encode(record))
        return True

    def write(self, record: Record) -> None:
        """In the place of what was written before, whole or not at all. Raises OSError."""
        beside = self.path(record.worker_id, ".new")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            opened.write(msgspec.json.encode(record))
        beside.replace(self.path(record.worker_id))

    def read(self, worker_id: str) -> Record | None:
        """None: there is none. A file that is none of ours is a worker of which nothing is known. Raises OSError."""
        try:
            text = self.path(worker_id).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(text, type=Record)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # a power cut between making the file and its content: the id was used, its process is of another boot
            return Record(
                worker_id=worker_id, cluster="", place="", pool="", generation=0, version="", key_hash="", boot=""
            )

    def ids(self) -> list[str]:
        """Raises OSError."""
        return sorted(path.stem for path in self.directory.iterdir() if path.suffix == ".json")

    def remove(self, worker_id: str) -> None:
        for ending in reversed(ENDINGS):  # the record last: what a crash leaves is removed once more
            self.path(worker_id, ending).unlink(missing_ok=True)


# -- processes --------------------------------------------------------------------------------------------------------


def begun_ticks(pid: int) -> int | None:
    """Start time of a process; None: there is none, or it is over and waits to be reaped."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def memory(pid: int) -> tuple[int, int]:
    """(now, the most so far) in bytes of resident memory; zeros: it is gone."""
    now = peak = 0
    try:
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                now = int(line.split()[1]) << 10
            elif line.startswith("VmHWM:"):
                peak = int(line.split()[1]) << 10
    except OSError:
        pass
    return now, peak


def belongs(pid: int, place: str, worker_id: str) -> bool:
    """Whether a process began as this worker, or below it: by its variables. As far as this user may look. `place`:
    prefix of cluster and node, for two of them on one machine may have launches of one number."""
    try:
        variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"WORKER_ID={worker_id}".encode() in variables and f"{MARK}={place}".encode() in variables


def processes_of(place: str, worker_id: str) -> list[int]:
    """The worker, its children, those that left its session."""
    return [int(name) for name in os.listdir(PROC) if name.isdecimal() and belongs(int(name), place, worker_id)]
