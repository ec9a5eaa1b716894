"""What RabbitMQ and LavinMQ have, and what there is here, as docs/compatibility.md has it; run it to write it there:

python -m tests.unit.broker.compatibility

`tests/spec/peers.toml` has the names; whether a name is here is asked of the code that knows it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterbroker.broker.cli import rabbitmqctl
from clusterbroker.broker.fronts.amqp091.handshake import CAPABILITIES
from clusterbroker.broker.http.app import _routes
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring.exchange_rules import DECLARABLE
from clusterbroker.cluster.wiring.queue_settings import ARGUMENT_RULES, POLICY_RULES, Rule
from tests.unit.broker.fronts.amqp091.harness import World

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "compatibility.md"
PEERS = tomllib.loads((ROOT / "tests" / "spec" / "peers.toml").read_text(encoding="utf-8"))
BEGIN, END = "<!-- table: begins -->", "<!-- table: ends -->"
EXCHANGE_KEYS = ("alternate-exchange",)
"""Keys of policies that are no settings of queues."""
_PARAMETER = re.compile(r"\{[^}]*\}")
WITHOUT_EFFECT = "accepted, without effect"


def consumers_know(name: str) -> bool:
    """Whether a consumer's argument is looked at: one that cannot be right is refused, of a queue or of a stream."""
    world = World(journaled=False)
    for queue, arguments in (("q", {}), ("s", {"x-queue-type": "stream"})):
        client = world.client()
        client.ask(m.QueueDeclare(queue=queue, durable=True, arguments=arguments))
        client.say(m.BasicQos(prefetch_count=1))
        said = client.say(m.BasicConsume(queue=queue, arguments={name: [], **_beside(name)}))
        if any(isinstance(answer, m.ChannelClose) and f"'{name}'" in answer.reply_text for answer in said):
            return True
    return False


def _beside(name: str) -> dict[str, Any]:
    """What makes the argument count."""
    return {"x-stream-filter": "a"} if name == "x-stream-match-unfiltered" else {}


def routes() -> set[str]:
    """All of the management API's, parameters without their names."""
    return {f"{method} {_PARAMETER.sub('{}', route.path)}" for route in _routes() for method in route.methods or ()}  # type: ignore[attr-defined]


def _is_effective(name: str, rules: Mapping[str, Rule]) -> str | bool:
    rule = rules.get(name)
    if rule is None:
        return False
    return WITHOUT_EFFECT if WITHOUT_EFFECT in rule.legal.schema.get("description", "").lower() else True


def _policy(name: str) -> str | bool:
    return name in EXCHANGE_KEYS or _is_effective(name, POLICY_RULES)


def _verb(name: str) -> str | bool:
    return rabbitmqctl.hint(name) or False


def asked() -> dict[str, Callable[[str], str | bool]]:
    """Of each section: True: it is here; a text: what does the same, or how it is here; False: it is not."""
    known = routes()
    return {
        "exchange-types": DECLARABLE.__contains__,
        "queue-arguments": lambda name: _is_effective(name, ARGUMENT_RULES),
        "policy-keys": _policy,
        "consumer-arguments": consumers_know,
        "capabilities": CAPABILITIES.__contains__,
        "api": lambda name: _PARAMETER.sub("{}", name) in known,
        "verbs": _verb,
    }


def rows(section: str, is_here: Callable[[str], str | bool]) -> Iterator[tuple[str, str]]:
    """Each name, and what is said of it."""
    instead = PEERS[section].get("instead", {})
    for name in PEERS[section]["names"]:
        found = is_here(name)
        if found is True:
            assert name not in instead, f"'{name}' is here: peers.toml says that something else is"
            yield name, "yes"
        elif found:
            yield name, f"`{found}`" if found.startswith("clusterbroker ") else str(found)
        else:
            yield name, f"no; {instead[name]}" if name in instead else "no"


def table() -> str:
    """All sections."""
    parts = []
    for section, is_here in asked().items():
        found = list(rows(section, is_here))
        lines = "\n".join(f"| `{name}` | {said} |" for name, said in found)
        there = sum(not said.startswith("no") for _, said in found)
        parts.append(f"## {PEERS[section]['title']}\n\n{there} of {len(found)}.\n\n| name | here |\n|---|---|\n{lines}")
    plug_ins = PEERS["plug-ins"]
    here = [f"| `{name}` | {text} | [{page}]({page}) |" for name, (text, page) in plug_ins["here"].items()]
    none = [f"| `{name}` | no | |" for name in plug_ins["none"]]
    parts.append(f"## {plug_ins['title']}\n\n| name | here | |\n|---|---|---|\n" + "\n".join(here + none))
    return "\n\n".join(parts)


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
