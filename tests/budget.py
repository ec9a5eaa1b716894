"""How much is tried: all, what a commit is given 20 minutes for, or a fifth where the answer is awaited.

TESTS_TIER=commit   `scripts/test` and CI: a sixth of what is marked `matrix`, unless their code changed the smoke of
                    Spark and of the browser and a sixth of the families, and 60 s of campaigns
TESTS_TIER=all      `scripts/test --all`: everything, and 30 minutes of campaigns
TESTS_TIER=brief    `scripts/check`: a fifth of the examples; all tests of packages that changed since the last commit,
                    and of the others, and of the matrix, that sixth; campaigns and starts of nodes are left out by
                    their marks
unset               pytest was called by hand: whatever it selects, with the campaigns of a commit

What is made up follows from the commit, so a state of the project has one verdict, and each commit tries something
else. TESTS_SEED=N in its place; a failure names the seed that it began with.
"""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
ROOT: Final = Path(__file__).resolve().parent.parent
TIER: Final = os.environ.get("TESTS_TIER", "")
BRIEF: Final = TIER == "brief"
ALL: Final = TIER == "all"
SIXTHS: Final = 6
ALL_FACTOR: Final = 30
CAMPAIGNS_S: Final = {
    "simulation": 10.0, "raft": 4.0, "cluster_lives": 4.0, "replication": 4.0, "proxies": 2.0, "differential": 3.0,
    "node_crash": 6.0, "sender_links": 2.0, "receiver_links": 2.0, "pools": 3.0, "pools_shared": 2.0,
    "pool_cluster": 4.0,
}  # fmt: skip
"""Processor time by world. What is left of the 60 s goes to the gates: bugs that are put in, and must be found."""
CODE_OF: Final = {
    "spark": ("pipeline/", "pyspark_clusterbroker.py", "tests/spark/", "tests/unit/pipeline/", "examples/spark"),
    "browser": ("web/", "tests/browser/", "broker/http/web_page.py"),
    "amqp10": (
        "broker/fronts/amqp10/",
        "broker/wire/amqp10/",
        "broker/queues/link",
        "broker/remote/link",
        "tests/interop/",
        "tests/conformance/amqp10/",
        "tests/unit/amqp10/",
        "amqp10/",
    ),
    "cluster": (
        "broker/remote/",
        "broker/server/",
        "cluster/",
        "journal/",
        "replication/",
        "tests/faults/test_cluster",
    ),
    "bench": ("bench/", "tests/unit/bench/"),
    "deploy": ("deploy/", "scripts/", "pyproject.toml", "setup.py", "tests/unit/deploy/"),
    "embedded": (
        "broker/embedded",
        "clusterbroker/pytest_plugin",
        "broker/trial/",
        "broker/foreman/",
        "clusterbroker_workers/",
    ),
    "foreman": ("broker/foreman/", "tests/unit/broker/foreman/", "tests/faults/test_pools_"),
    "security": (
        "broker/access/",
        "broker/oauth2/",
        "broker/server/logins",
        "broker/server/tls",
        "broker/server/audit",
        "broker/server/listener",
        "tests/faults/test_secured.py",
    ),
    "transactions": (
        "broker/transactions/",
        "broker/access/transaction",
        "tests/faults/test_transactions.py",
    ),
    "delays": ("broker/delay/", "broker/content/delays", "broker/routing/", "tests/conformance/delay/"),
    "management": ("broker/http/", "broker/management/", "tests/faults/test_management", "tests/fuzz/"),
    "bridges": ("broker/bridges/", "tests/faults/test_migration.py", "tests/faults/test_bridge"),
    "streams": ("broker/streams/", "journal/stream", "tests/faults/test_streams.py", "tests/unit/broker/streams/"),
    "pools": (
        "broker/pools/",
        "broker/foreman/",
        "cluster/wiring/pool",
        "tests/faults/test_pool",
        "tests/conformance/pools/",
    ),
}
"""What the tests in such a folder, or of such a family, are about: all of them are run when it changed; else the smoke
of the folder, and of the family what has its turn."""
NOT_OF: Final = {"cluster": ("cluster/wiring/pool",)}
"""Code below a family's that is of another one."""
FAMILIES: Final = {
    "tests/conformance/amqp10/": "amqp10",
    "tests/property/test_client10_lives.py": "amqp10",
    "tests/property/test_codec10_model.py": "amqp10",
    "tests/property/test_delivery10_model.py": "amqp10",
    "tests/property/test_held_lives.py": "amqp10",
    "tests/property/test_link_lives.py": "amqp10",
    "tests/property/test_translation_model.py": "amqp10",
    "tests/unit/amqp10/": "amqp10",
    "tests/unit/bench/": "bench",
    "tests/property/test_mover_lives.py": "bridges",
    "tests/unit/deploy/": "deploy",
    "tests/unit/broker/test_embedded.py": "embedded",
    "tests/unit/broker/test_embedded_pools.py": "embedded",
    "tests/unit/workers/": "embedded",
    "tests/unit/broker/foreman/drivers/": "foreman",
    "tests/unit/pipeline/": "spark",
    "tests/unit/broker/streams/test_stream_backup.py": "streams",
    "tests/unit/broker/streams/test_stream_files.py": "streams",
    "tests/unit/broker/streams/test_stream_node.py": "streams",
    "tests/conformance/delay/": "delays",
    "tests/conformance/pools/": "pools",
    "tests/faults/test_cluster_commands.py": "cluster",
    "tests/faults/test_cluster_damage.py": "cluster",
    "tests/faults/test_cluster_faults.py": "cluster",
    "tests/faults/test_cluster_hostile.py": "cluster",
    "tests/faults/test_clocks.py": "cluster",
    "tests/faults/test_delay_faults.py": "delays",
    "tests/faults/test_directories.py": "cluster",
    "tests/faults/test_disk.py": "cluster",
    "tests/faults/test_imports.py": "cluster",
    "tests/faults/test_leaving.py": "cluster",
    "tests/faults/test_management.py": "management",
    "tests/faults/test_membership.py": "cluster",
    "tests/faults/test_old_disks.py": "cluster",
    "tests/faults/test_partial_cuts.py": "cluster",
    "tests/faults/test_rolling_upgrade.py": "cluster",
    "tests/fuzz/test_management_requests.py": "management",
    "tests/interop/test_amqp10_clients.py": "amqp10",
    "tests/interop/test_amqp10_rabbitmq.py": "amqp10",
    "tests/faults/test_migration.py": "bridges",
    "tests/faults/test_bridges.py": "bridges",
    "tests/faults/test_bridge_failover.py": "bridges",
    "tests/faults/test_secured.py": "security",
    "tests/faults/test_single_messages.py": "management",
    "tests/faults/test_streams.py": "streams",
    "tests/faults/test_transactions.py": "transactions",
    "tests/faults/test_trial.py": "embedded",
    "tests/faults/test_pools.py": "pools",
    "tests/faults/test_pools_kubernetes.py": "foreman",
    "tests/faults/test_pools_scaled.py": "foreman",
    "tests/faults/test_pool_cuts.py": "pools",
    "tests/faults/test_pool_drivers.py": "pools",
    "tests/faults/test_pool_nodes.py": "pools",
    "tests/faults/test_pool_pods.py": "pools",
    "tests/faults/test_pool_workers.py": "pools",
}
"""Files, and folders, whose tests take long: as a matrix, but for commits that change what they are about."""
PAGES: Final = "tests/pages/test_blocks.py::test_what_a_page_shows_works"
"""Likewise; each is about its page."""
COMMITS: Final = 6
"""On the main line, what the last so many commits changed counts as changed."""


def examples(count: int) -> int:
    """`count` is what a commit tries; the part of it that there is time for, or three times as many for `--all`."""
    return -(-count // 5) if BRIEF else count * 3 if ALL else count


def campaign_s(world: str) -> float:
    """How much processor time a world may take."""
    return CAMPAIGNS_S[world] * (ALL_FACTOR if ALL else 1)


def seed(world: str) -> int:
    """The first seed of a world, below 1e9. The next ones follow."""
    given = os.environ.get("TESTS_SEED")
    return int(given) if given else zlib.crc32(f"{commit()} {world}".encode()) % 1_000_000_000


def campaign(world: str, live: Callable[[int], T], again: str) -> list[T]:
    """What `live(seed)` returned for seed after seed, until the world's time is over; of one at least. What it raises
    says `again`, the command that replays it."""
    first = seed(world)
    lives: list[T] = []
    end_s = time.process_time() + campaign_s(world)
    while not lives or time.process_time() < end_s:
        try:
            lives.append(live(first + len(lives)))
        except Exception as error:
            error.add_note(f"again: {again} {first + len(lives)}")
            raise
    return lives


def sixth() -> int:
    """Which part of the matrix has its turn, 0 to 5."""
    return zlib.crc32(commit().encode()) % SIXTHS


def in_turns(test: str) -> bool:
    """Whether a test, by its id, is of a family, or of a page, that has not changed, nor its own file."""
    path, _, name = test.partition("::")
    if TIER == "commit" and path in (changed() or ()):
        return False
    if test.startswith(PAGES):
        files = changed()
        return TIER == "commit" and files is not None and name.partition("[")[2].rstrip("]") not in files
    family = next((FAMILIES[start] for start in (path, f"{path.rpartition('/')[0]}/") if start in FAMILIES), None)
    return family is not None and not whole(family)


def has_its_turn(test: str) -> bool:
    """Of the tests that are marked `matrix`, and of families, by their ids."""
    return zlib.crc32(test.encode()) % SIXTHS == sixth()


@cache
def commit() -> str:
    """The hash of what is checked out, "" where there is no repository."""
    return os.environ.get("TESTS_COMMIT") or _git("rev-parse", "HEAD").strip()


@cache
def changed() -> frozenset[str] | None:
    """The files that differ from what the branch began with, and those of the last commits. None: nobody knows."""
    base = ""
    for main in ("origin/main", "main"):
        base = _git("merge-base", "HEAD", main).strip()
        if base:
            break
    if not base or base == commit():
        base = _git("rev-parse", "--verify", "-q", f"HEAD~{COMMITS}").strip()
    if not base:
        return None
    named = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    return frozenset(named.split("\n")) - {""}


@cache
def _since_commit() -> tuple[str, ...]:
    """The files that changed since the last commit; when none did, those that the last commit changed."""
    named = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return tuple(named.split() or _git("diff", "--name-only", "HEAD~1").split())


@cache
def packages() -> frozenset[str]:
    """The folders of unit tests whose package changed since the last commit, or one of themselves:
    `tests/unit/broker/a` is that of `broker/a`."""
    folders = {str(Path(file).parent) for file in _since_commit()}
    return frozenset(folder if folder.startswith("tests/") else f"tests/unit/{folder}" for folder in folders)


def rests(path: str) -> bool:
    """Whether a file has tests of what has not changed since the last commit, as far as its name tells."""
    folder = path.rpartition("/")[0]
    return path.count("/") > 1 and folder not in packages() and path not in mirrors()


@cache
def mirrors() -> frozenset[str]:
    """The files of tests that changed since the last commit, or that replica what did: `broker/a/b.py` is tested by a
    file below `tests/unit/broker/a` that ends with `b.py`."""
    files = _since_commit()
    found = {file for file in files if file.startswith("tests/")}
    for path in map(Path, files):
        found |= {
            str(test.relative_to(ROOT)) for test in (ROOT / "tests/unit" / path.parent).glob(f"test_*{path.stem}.py")
        }
    return frozenset(found)


@cache
def whole(folder: str) -> str:
    """Why all tests of a folder of `CODE_OF` are run; "" when their smoke is enough."""
    if TIER != "commit":
        return "asked for"
    files = changed()
    if files is None:
        return "what changed is not known"
    own, others = CODE_OF[folder], NOT_OF.get(folder, ())
    changed_ones = (file for file in sorted(files) if file.startswith(own) and not (others and file.startswith(others)))
    return next((f"{file} changed" for file in changed_ones), "")


def _git(*words: str) -> str:
    """What it says, "" when it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=20)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
