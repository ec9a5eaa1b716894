"""Made-up requests at real nodes: `python -m tests.fuzz.management_requests --examples 100 --nodes 3`.

Schemathesis reads the API's document and sends what fits it and what does not. No answer is a 5xx, each is of the kind
that the document says, and afterwards the nodes do their work and have nothing to tell. Health checks are left out,
for 503 is what they say of a node in trouble, and the sign-in, whose failures hold up everybody at an address.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from clusterbroker.broker.trial.nodes import LOOPBACK, free_port
from tests.faults.fleet import Fleet

ROOT = Path(__file__).resolve().parents[2]
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method",
)  # fmt: skip
USER = ("fuzzer", "let me in")
"""Nothing is asked about this user, so that nobody is shut out half way."""
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
TROUBLE = ("Traceback", "request failed", "management.ended", "AssertionError")
"""What no log may have afterwards."""


class Target:
    """Nodes with something in them. `url` is that of the management API of the last one."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self.fleet = Fleet(directory)
        self.names = ("n1",) if nodes == 1 else tuple("abcde"[:nodes])
        self.ports = {name: free_port() for name in self.names}

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports[self.names[-1]]}"

    async def start(self) -> None:
        for name in self.names:
            peers = ("--peers", self.fleet.peers(*self.names)) if len(self.names) > 1 else ()
            self.fleet.launch(name, *peers, "--http", f"{LOOPBACK}:{self.ports[name]}")
        await self.fleet.ready(*self.names)

    def trouble(self) -> list[str]:
        """Lines of the logs, and nodes that are gone."""
        found = [f"{name} has ended" for name in self.names if not self.fleet.node(name).running]
        for name in self.names:
            lines = self.fleet.node(name).log.read_text(errors="replace").splitlines()
            found += [f"{name}: {line}" for line in lines if any(word in line for word in TROUBLE)]
        return found


@contextlib.asynccontextmanager
async def target(directory: Path, nodes: int) -> AsyncIterator[Target]:
    """It is started and furnished, and gone in the end."""
    made = Target(directory, nodes)
    try:
        await made.start()
        await asyncio.to_thread(furnish, made.url)
        yield made
    finally:
        await made.fleet.kill_all()


def furnish(url: str) -> None:
    """What requests can be about, in two vhosts."""
    with httpx.Client(base_url=f"{url}/api/", auth=("guest", "guest"), timeout=30, verify=False) as api:

        def do(method: str, path: str, body: object) -> None:
            api.request(method, path, json=body).raise_for_status()

        do("PUT", "vhosts/fuzz%2Fed", {})
        do("PUT", "users/alice", {"password": "x", "tags": "management"})
        do("PUT", f"users/{USER[0]}", {"password": USER[1], "tags": "administrator"})
        for vhost in ("%2F", "fuzz%2Fed"):
            for user in ("guest", "alice", USER[0]):
                do("PUT", f"permissions/{vhost}/{user}", ALL)
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q.dead"}
            do("PUT", f"queues/{vhost}/q", {"arguments": dead})
            do("PUT", f"queues/{vhost}/q.dead", {})
            do("PUT", f"queues/{vhost}/a%2Fb%3F%25", {"arguments": {"x-max-priority": 3}})
            do("PUT", f"exchanges/{vhost}/topic", {"type": "topic"})
            do("PUT", f"exchanges/{vhost}/fan", {"type": "fanout"})
            do("POST", f"bindings/{vhost}/e/topic/q/q", {"routing_key": "k"})
            do("PUT", f"policies/{vhost}/p", {"pattern": "^q", "definition": {"max-length": 1000}})
            do("PUT", f"topic-permissions/{vhost}/alice", {"exchange": "topic", "write": "^a", "read": ".*"})
            for number in range(20):
                properties = {"headers": {"n": number}, "delivery_mode": 2}
                message = {"routing_key": "k", "payload": "x" * number, "payload_encoding": "string"}
                do("POST", f"exchanges/{vhost}/topic/publish", message | {"properties": properties})


def requested(url: str, examples: int, seed: int, phases: str) -> tuple[int, str]:
    """Schemathesis' exit code, and all that it says."""
    words = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/api/openapi.json"]
    words += ["--auth", ":".join(USER), "--exclude-path-regex", "^/api/(health|login)", "--phases", phases]
    words += ["--checks", ",".join(CHECKS), "--max-examples", str(examples), "--seed", str(seed)]
    words += ["--warnings", "off", "--suppress-health-check", "all", "--continue-on-failure"]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "tests.fuzz.management_hooks", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=directory)
    return done.returncode, done.stdout + done.stderr


def still_works(url: str) -> None:
    """A message goes through a vhost of its own, and the map can be read."""
    with httpx.Client(base_url=f"{url}/api/", auth=USER, timeout=30, verify=False) as api:
        api.put("vhosts/afterwards").raise_for_status()
        api.put(f"permissions/afterwards/{USER[0]}", json=ALL).raise_for_status()
        assert api.get("aliveness-test/afterwards").raise_for_status().json() == {"status": "ok"}
        assert api.get("definitions").raise_for_status().json()["users"]


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.management_requests", description=__doc__)
    parser.add_argument("--examples", type=int, default=50, help="requests of each method and path")
    parser.add_argument("--nodes", type=int, default=1, help="1, or 3: one broker")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        async with target(Path(directory), given.nodes) as made:
            code, said = await asyncio.to_thread(requested, made.url, given.examples, given.seed, "coverage,fuzzing")
            print(said)
            await asyncio.to_thread(still_works, made.url)
            trouble = made.trouble()
    print(*trouble, f"{len(trouble)} lines of trouble in the logs", sep="\n")
    return code or bool(trouble)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
