"""The house rules, read from the imports: floors go down, cores are pure, no circles, files stay small.

    broker > replication > cluster > journal        pipeline beside them, importing none (but see ALLOWED)
    amqp10 (a client) > broker.wire

A core takes events and `now`, and returns effects; only the shells listed here may wait for, or ask, the world. To
add a shell, add a line with its reason. A line that is no longer needed is an error as well, so the lists stay true.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).resolve().parent.parent

PACKAGE = "clusterbroker"
"""The one package that is installed. Below, and in the lists, modules go by their names inside it."""
WORKERS = "clusterbroker_workers"
"""The library of workers and callers, beside it: it is installed where no node is."""
MAY_IMPORT = {
    "journal": set(),
    "cluster": {"journal"},
    "replication": {"cluster", "journal"},
    "broker": {"replication", "cluster", "journal"},
    "pipeline": set(),
    "amqp10": {"broker"},  # of it only the codec of its protocol: FLOORS
}
ALLOWED = {
    "broker/trial/recoverable_client.py": {"amqp10"},  # a program that uses the client
    "pipeline/journal.py": {"cluster", "journal"},  # reads a node's disk, whose format is written down there
}
"""Files that may import more than their floor."""
OURS = {*MAY_IMPORT, "tests", "bench"}

WORLD = {
    "asyncio", "concurrent", "fcntl", "lmdb", "mmap", "multiprocessing", "os", "queue", "random", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uuid", "uvloop",
}  # fmt: skip
"""Modules that wait, or that read clock, chance, disk, network or environment."""

SHELLS = {
    "amqp10/client/endpoints.py": "futures of a program, tags that were never there before",
    "amqp10/client/management.py": "waits for answers",
    "amqp10/client/shell.py": "a client's socket, clock and chance",
    "amqp10/client/store.py": "a file",
    "broker/foreman/authorities.py": "reads a file of certificates",
    "broker/foreman/drivers/": "processes, daemons and their sockets",
    "broker/foreman/endpoints.py": "where this place has started workers: a file",
    "broker/foreman/foreman.py": "rounds of a place: waits for drivers",
    "broker/foreman/main.py": "the foreman process itself",
    "broker/foreman/templates.py": "reads a config file, and who may write it",
    "broker/bridges/carrier.py": "carries out what a mover wants, between two connections",
    "broker/bridges/channel.py": "a client's socket",
    "broker/bridges/file_ledger.py": "a file that is flushed",
    "broker/bridges/migration.py": "dials two brokers for each queue, and again; a directory with its lock",
    "broker/bridges/places.py": "contexts of TLS",
    "broker/bridges/queue_ledger.py": "a ledger at a broker",
    "broker/bridges/standing.py": "dials again, for good",
    "broker/bridges/stream_carrier.py": "carries out what the mover of a stream wants; a file with its place",
    "broker/http/app.py": "the management process answers requests on its loop",
    "broker/http/middleware/bodies.py": "waits for bodies, and for a turn to read them",
    "broker/http/hashing.py": "hashes passwords in threads, a few at a time",
    "broker/http/control_client.py": "the line to the node",
    "broker/http/pool_search.py": "asks queues' owners in turns, some at once",
    "broker/http/importing.py": "waits until an import is carried out, and begins it anew when others meet it",
    "broker/http/main.py": "the management process itself",
    "broker/http/auth.py": "waits for passwords to be verified in threads, makes tokens",
    "broker/http/tcp_server.py": "the sockets of HTTP, with and without TLS, and its patience with clients",
    "broker/http/metric_pages.py": "sends long answers in parts, and lets other requests come between",
    "broker/cli/": "the command line: processes, files, terminals",
    "broker/oauth2/tokens.py": "fetches the keys of an authority, in a thread",
    "broker/server/": "the shell of the node: one loop, sockets, disk, clock",
    "broker/trial/client.py": "a client's socket",
    "broker/trial/clocks.py": "a library that changes clocks, built and told",
    "broker/trial/faults.py": "what is done to processes and disks",
    "broker/trial/load.py": "clients at work",
    "broker/trial/nodes.py": "processes of nodes",
    "broker/trial/recoverable_client.py": "a program of a client",
    "broker/trial/recoverable_load.py": "processes of clients",
    "broker/trial/relay.py": "the wires between them",
    "broker/trial/rounds.py": "a trial takes its time",
    "broker/boot_definitions.py": "reads a file, and waits until its definitions are there",
    "broker/config.py": "the only reader of file and environment",
    "broker/embedded.py": "a node inside another program: its thread and its loop",
    "broker/embedded_pools.py": "makes a file for its foreman, and waits for its end",
    "cluster/data_directory.py": "reads a node's files, and looks again",
    "cluster/link/acceptor.py": "the cluster's port",
    "cluster/link/door.py": "accepts connections",
    "cluster/link/certificates.py": "fresh keys, and contexts of TLS",
    "cluster/link/link.py": "one connection between nodes",
    "cluster/link/mesh.py": "dials the peers, with jitter",
    "cluster/link/path_of.py": "a file for a moment",
    "cluster/link/secret.py": "finds the join secret, or makes it",
    "cluster/liveness/datagrams.py": "a UDP socket",
    "cluster/liveness/heart.py": "reads the clock, leads or follows",
    "cluster/liveness/pulse.py": "beats, in a thread with a loop of its own",
    "cluster/liveness/steady.py": "reads the machine's clocks",
    "cluster/local_log.py": "the wiring log's writer thread",
    "cluster/log_store.py": "the wiring log's LMDB",
    "cluster/raft/disk.py": "the wiring log's files in a cluster",
    "cluster/raft/pinned.py": "puts back what the Raft library replaces in the socket module",
    "cluster/passwords.py": "salts come from the system",
    "pipeline/asking.py": "waits for answers",
    "pipeline/bulk.py": "waits for confirms",
    "pipeline/connection.py": "a client's socket",
    "pipeline/foreach_batch.py": "makes the file through which counts come",
    "pipeline/reading.py": "waits for deliveries",
    "pipeline/leases.py": "names its runs, and waits for deliveries",
    "pipeline/queue_source.py": "knows how long a batch was waited for",
    "pipeline/session.py": "starts a Java",
    "pipeline/showcase/": "an example: processes, files, a terminal",
    "pipeline/sink.py": "names its jobs",
    "pipeline/source.py": "knows how long a batch was waited for",
    "pipeline/task.py": "connections belong to a process",
    "pipeline/transactions.py": "names its segments",
    "journal/check.py": "reads a journal that may be moving, and looks again",
    "journal/compact.py": "rewrites a journal's files",
    "journal/platform.py": "flushes",
    "journal/disk_state.py": "what several threads say of one disk",
    "journal/index.py": "the journal's LMDB",
    "journal/inspect.py": "reads a journal that may be moving",
    "journal/journal.py": "ties writer, reader and checkpoint threads together",
    "journal/look.py": "a process that may die of what it reads",
    "journal/reader.py": "page-in from segments",
    "journal/recovery.py": "puts an end to the log's files",
    "journal/segments.py": "the segment files",
    "journal/stream_files.py": "the files of streams",
    "journal/stream_salvage.py": "the files of streams, without the index",
    "journal/worker.py": "a thread and its jobs",
    "journal/writer.py": "the group commit's thread",
}
"""Files, or whole rooms, that may import modules of WORLD, and why."""

CIRCLES: dict[tuple[str, str], str] = {}
"""Imports that close a circle and are suffered for now, and why."""

LINES_MAX = 600
LONG = {
    "broker/wire/amqp091/codec.pyx": "all that runs per frame, in one unit of translation: calls between units cost",
    "broker/wire/amqp10/codec.pyx": "likewise",
    "broker/queues/ring.pyx": "ring and hand-out share C structs that no Python may see",
    "journal/record.pyx": "message, group writer and scanner share C structs and one checksum",
}
"""Files above LINES_MAX lines, and why."""


def sources() -> list[Path]:
    """Everything on the floors that is written by hand, relative to the root."""
    found = [
        path for floor in MAY_IMPORT for pattern in ("*.py", "*.pyx", "*.pxd") for path in (ROOT / floor).rglob(pattern)
    ]
    return sorted(path.relative_to(ROOT) for path in found)


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in sources() if path.suffix != ".pxd"}


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The modules that a file imports when it runs, wherever the import stands; not those for type checkers only."""
    text = (ROOT / path).read_text(encoding="utf-8")
    names = set(cython_imports(text) if path.suffix != ".py" else _python_imports(ast.parse(text), path))
    return frozenset(names)


def _python_imports(tree: ast.AST, path: Path) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from (name for inner in node.orelse for name in _python_imports(inner, path))
        elif isinstance(node, ast.Import):
            yield from (within(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from from_import(node, path)
        elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):  # no expression imports anything
            yield from _python_imports(node, path)


def from_import(node: ast.ImportFrom, path: Path) -> Iterator[str]:
    package = list(path.parent.parts)
    base = package[: len(package) - node.level + 1] if node.level else []
    origin = within(".".join([*base, *(node.module or "").split(".")]).strip("."))
    for alias in node.names:
        name = f"{origin}.{alias.name}"
        yield name if name in modules() else origin


def cython_imports(text: str) -> Iterator[str]:
    for match in re.finditer(r"^\s*(?:from\s+([\w.]+)\s+c?import\s|c?import\s+([\w.]+))", text, re.MULTILINE):
        yield within(match[1] or match[2])


def within(name: str) -> str:
    """The name of a module inside the one package that is installed; others are as they are."""
    return name.removeprefix(f"{PACKAGE}.")


def test_the_list_of_allowed_imports_is_true() -> None:
    idle = [
        f"{name} imports nothing of {floor}"
        for name, floors in ALLOWED.items()
        for floor in floors
        if floor not in {floor_of(module) for module in imports_of(Path(name))}
    ]
    assert not idle, f"listed as allowed, but not needed (any more): {', '.join(idle)}"


def floor_of(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.parametrize("floor", MAY_IMPORT)
def test_imports_only_go_down(floor: str) -> None:
    wrong = [
        f"{path} imports {module}"
        for path in sources()
        if path.parts[0] == floor
        for module in sorted(imports_of(path))
        if floor_of(module) in OURS - MAY_IMPORT[floor] - ALLOWED.get(str(path), set()) - {floor}
    ]
    allowed = ", ".join(sorted(MAY_IMPORT[floor])) or "nothing of ours"
    assert not wrong, f"{floor}/ may import {allowed}, but " + "; ".join(wrong)


def shell_of(path: Path) -> str | None:
    """The line of SHELLS that a file falls under."""
    return next(
        (name for name in SHELLS if str(path) == name or (name[-1] == "/" and str(path).startswith(name))), None
    )


def test_only_shells_touch_the_world() -> None:
    wrong = [
        f"{path} imports {', '.join(touched)}: hand it in, or move what waits into a shell"
        for path in sources()
        if shell_of(path) is None and (touched := sorted(WORLD & {floor_of(name) for name in imports_of(path)}))
    ]
    assert not wrong, "cores are pure, but " + "; ".join(wrong)


def test_the_list_of_shells_is_true() -> None:
    busy = {shell_of(path) for path in sources() if WORLD & {floor_of(name) for name in imports_of(path)}}
    idle = sorted(SHELLS.keys() - busy)
    assert not idle, f"listed as shells, but they touch nothing of the world (any more): {', '.join(idle)}"


@pytest.mark.parametrize("floor", MAY_IMPORT)
def test_no_circles_inside_a_floor(floor: str) -> None:
    edges = {
        module: {name for name in imports_of(path) if name in modules() and name != module} - suffered(module)
        for module, path in modules().items()
        if path.parts[0] == floor
    }
    circle = _circle(edges)
    assert not circle, f"a circle of imports in {floor}/: {' -> '.join(circle)}"


def suffered(module: str) -> set[str]:
    return {target for origin, target in CIRCLES if origin == module}


def test_the_list_of_circles_is_true() -> None:
    gone = [
        f"{origin} -> {target}"
        for origin, target in CIRCLES
        if origin not in modules() or target not in imports_of(modules()[origin])
    ]
    assert not gone, f"listed as circles, but not imported (any more): {', '.join(gone)}"


def _circle(edges: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def visit(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for target in sorted(edges.get(module, ())):
            if found := visit(target, [*way, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(edges) if (found := visit(module, []))), [])


def lines_of(path: Path) -> int:
    return (ROOT / path).read_text(encoding="utf-8").count("\n")


def test_files_stay_small() -> None:
    long = [
        f"{path} has {lines_of(path)} lines"
        for path in sources()
        if lines_of(path) > LINES_MAX and str(path) not in LONG
    ]
    assert not long, f"a file has one reason to exist and at most {LINES_MAX} lines, but " + "; ".join(long)
    short = [name for name in LONG if not (ROOT / name).exists() or lines_of(Path(name)) <= LINES_MAX]
    assert not short, f"listed as long, but they are not (any more): {', '.join(short)}"


def test_files_of_tests_have_names_of_their_own() -> None:
    """Beside files that are no package pytest cannot tell two of one name apart, and runs none."""
    bare = [path for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    twice = sorted(name for name, count in Counter(path.name for path in bare).items() if count > 1)
    assert not twice, f"rename one of each: {', '.join(twice)}"


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {".".join(path.parent.parts) for path in sources()}
    listed = {*find_packages(str(ROOT), include=settings["packages"]["find"]["include"])}
    ours = {PACKAGE, *(f"{PACKAGE}.{name}" for name in found), WORKERS}
    assert listed == ours, "installed is what has code, and nothing else"
    bare = sorted(name for name in found if not (ROOT / name.replace(".", "/") / "__init__.py").exists())
    assert not bare, f"packages without __init__.py: {', '.join(bare)}"
    links = {path.name: path.resolve() for path in (ROOT / PACKAGE).iterdir() if path.is_symlink()}
    assert links == {floor: ROOT / floor for floor in MAY_IMPORT}, "each floor is linked into the package"


def test_floors_are_imported_as_parts_of_the_package() -> None:
    """By its bare name a floor is found as well where the repository is the working directory, and is a second one."""
    bare = re.compile(rf"^\s*(?:from|c?import)\s+(?:{'|'.join(MAY_IMPORT)})\b(?!\s*=)", re.MULTILINE)
    files = [
        path
        for folder in (*MAY_IMPORT, PACKAGE, WORKERS, "tests", "bench", "scripts", "examples")
        for kind in ("*.py", "*.pyx", "*.pxd", "*.pxi", "*.pyi")
        for path in (ROOT / folder).rglob(kind)
        if path not in (Path(__file__), ROOT / "tests/test_floors.py")  # their small houses
    ]
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0].strip()}"
        for path in files
        if (found := bare.search(path.read_text(encoding="utf-8")))
    ]
    assert files
    assert not wrong, f"say `from {PACKAGE}.`: {'; '.join(wrong)}"


def test_the_library_of_workers_imports_nothing_of_the_broker() -> None:
    files = sorted((ROOT / WORKERS).rglob("*.py"))
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in _python_imports(ast.parse(path.read_text(encoding="utf-8")), path.relative_to(ROOT))
        if floor_of(name) in {*OURS, PACKAGE}
    ]
    assert files
    assert not wrong, "; ".join(wrong)


def test_a_rule_that_is_broken_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules themselves, tried on a small house that breaks them."""
    house = {
        "journal/__init__.py": "",
        "journal/a.py": "from . import b\nimport time\n",
        "journal/b.py": "def late():\n    from journal.a import x\n",
        "journal/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import broker.x\n",
        "journal/d.pyx": "from cluster.ids cimport QueueId\n",
    }
    for name, text in house.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    monkeypatch.setattr(f"{__name__}.SHELLS", {"journal/c.py": "touches nothing"})
    modules.cache_clear()
    imports_of.cache_clear()
    try:
        with pytest.raises(AssertionError, match=r"journal/d.pyx imports cluster.ids"):
            test_imports_only_go_down("journal")
        with pytest.raises(AssertionError, match=r"journal/a.py imports time"):
            test_only_shells_touch_the_world()
        with pytest.raises(AssertionError, match=r"journal/c.py"):
            test_the_list_of_shells_is_true()
        with pytest.raises(AssertionError, match=r"journal.a -> journal.b -> journal.a"):
            test_no_circles_inside_a_floor("journal")
    finally:
        modules.cache_clear()
        imports_of.cache_clear()


def test_a_change_of_any_compiled_source_compiles_again() -> None:
    """Else who takes a change of a `.pxi` from others runs what was compiled before it."""
    line = next(x for x in (ROOT / "scripts/environment").read_text().splitlines() if x.startswith("compiled_sources="))
    patterns = re.findall(r"[\w*/]+\.\w+", line.partition("ls ")[2])
    watched = {path for pattern in patterns for path in ROOT.glob(pattern)}
    kinds = {".pyx", ".pxi", ".pxd", ".h"}
    packages = ("broker", "cluster", "journal", "replication", "pipeline", "amqp10")
    sources = {path for name in packages for path in (ROOT / name).rglob("*") if path.suffix in kinds}
    assert sources, "there are some"
    assert not sources - watched
