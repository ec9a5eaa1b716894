"""Command lines for every command, and what each of them says: `tests/faults/test_command_line.py` runs them at a real
cluster of three.

A new command needs a row, or a line of ELSEWHERE. A new path of the management API needs a row whose command asks for
it, or a line of NOT_ASKED.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbroker.broker.management.amqp_operations import ACTS
from clusterbroker.broker.management.operations import OPERATIONS
from clusterbroker.broker.management.reads import READS
from clusterbroker.broker.management.writes import WRITES
from clusterbroker.cluster.wiring.levels import LEVEL

PARAMETER = re.compile(r"{\w+}")
BOTH, HERE, THERE = "both", "here", "there"


@dataclass(frozen=True)
class Row:
    """One command line, and what it says. {names} in it are those of the test's `Place.names`."""

    words: str
    said: str = ""
    code: int = 0
    stdin: str = ""
    ways: str = BOTH


TAKE = '{"queue": "leased", "name": "n", "run": "r"}'

ROWS = (
    Row("version", "."),
    Row("settings", "CLUSTERBROKER_NAME"),
    Row("whoami", "administrator"),
    Row("overview", "{cluster}"),
    Row("cluster status --json", '"name"'),
    Row("cluster name the-cluster", "the-cluster"),
    Row("cluster name", "the-cluster"),
    Row("cluster features", "quorum_queue"),
    Row("cluster raise-level --yes", f"the cluster is at feature level {LEVEL} already"),
    Row("nodes list", "MiB"),
    Row("nodes show b --columns name,running", "yes"),
    Row("nodes logins a", "amqp"),
    Row("nodes logins a --by-source"),
    Row("nodes forget-logins a", "are reset"),
    Row("members", "voter", ways=HERE),
    Row("status", "metadata digest", ways=HERE),
    Row("health", "serves clients", ways=HERE),
    Row("limit queues 0", ways=HERE),
    Row("reload-certificates --json", "[]", ways=HERE),
    Row("alarm set disk", ways=HERE),
    Row("alarm clear disk", ways=HERE),
    Row("checks list", "node-is-quorum-critical"),
    Row("checks run", " ok "),
    Row("checks run is-in-service below-node-connection-limit ready-to-serve-clients", " ok "),
    Row("checks run node node-is-mirror-sync-critical port-listener={http} protocol-listener=amqp", " ok "),
    Row("checks run certificate-expiration=1/months", " ok "),
    Row("checks run port-listener=1", "No active listener", 1),
    # who may what
    Row("vhosts add {v} --description words --tag mine", "is made"),
    Row("vhosts list", "{v}"),
    Row("vhosts show {v}", "words"),
    Row("users add {u} --tag management", "is made", stdin="s3cret\n"),
    Row("users without-permissions", "{u}"),
    Row("users list --filter {u}", "management"),
    Row("users password {u}", "another password", stdin="0ther\n"),
    Row("users tags {u} monitoring policymaker", "monitoring, policymaker"),
    Row("permissions set {u} {v} ^{u} .* .*", "may enter"),
    Row("permissions list", "^{u}"),
    Row("permissions list --of {u} --vhost {v}", "^{u}"),
    Row("permissions list --of {u}", "^{u}"),
    Row("permissions list --vhost {v}", "^{u}"),
    Row("users show {u}", "^{u}"),
    Row("permissions clear {u} {v}", "removed the permissions"),
    Row("permissions set guest {v} .* .* .*", "may enter"),
    Row("vhosts alive {v}", "ok"),
    Row("vhosts trace-on {v}", "is traced"),
    Row("vhosts show {v} --json", '"tracing": true'),
    Row("vhosts show {v}", "words"),
    Row("vhosts trace-off {v}", "is not traced"),
    Row("topic-permissions set {u} {v} amq.topic ^w ^r", "amq.topic"),
    Row("topic-permissions list", "^w"),
    Row("topic-permissions list --of {u} --vhost {v}", "^w"),
    Row("topic-permissions list --of {u}", "^w"),
    Row("topic-permissions list --vhost {v}", "^w"),
    Row("topic-permissions clear {u} {v} amq.topic", "no topic permission"),
    Row("topic-permissions set {u} {v} amq.topic ^w ^r", "amq.topic"),
    Row("topic-permissions clear {u} {v}", "no topic permission"),
    Row("user-limits set {u} max-channels 7", "7"),
    Row("user-limits list", "max-channels"),
    Row("user-limits list --of {u}", "max-channels"),
    Row("user-limits clear {u} max-channels", "no max-channels"),
    Row("vhost-limits set {v} max-queues 50", "50"),
    Row("vhost-limits list", "{v}"),
    Row("vhost-limits list --vhost {v}", "max-queues"),
    Row("vhost-limits clear {v} max-queues", "no max-queues"),
    # rules
    Row('policies set p ^q {{"message-ttl":1000000000000000000000000000000}} --vhost {v}', "is set"),
    Row("policies show p --vhost {v}", "9223372036854775807"),
    Row('operator-policies set o ^q {{"expires":18446744073709551616}} --vhost {v}', "is set"),
    Row("queues declare q/never --vhost {v} -a x-message-ttl=18446744073709551616", "is declared"),
    Row("queues declare q/never --vhost {v} -a x-message-ttl=18446744073709551616", "is declared"),
    Row("queues delete q/never --vhost {v}", "is deleted"),
    Row('policies set p ^q {{"max-length":50}} --vhost {v} --apply-to queues', "is set"),
    Row("policies list", "max-length"),
    Row("policies list --vhost {v}", "max-length"),
    Row("policies show p --vhost {v}", "queues"),
    Row('operator-policies set o ^q {{"max-length":40}} --vhost {v} --apply-to queues', "is set"),
    Row("operator-policies list", "max-length"),
    Row("operator-policies list --vhost {v}", "40"),
    Row("operator-policies show o --vhost {v}", "40"),
    Row('parameters set mine n {{"x":1}} --vhost {v}', "is set"),
    Row("parameters list", "mine"),
    Row("parameters list --component mine", "{v}"),
    Row("parameters list --component mine --vhost {v}", "mine"),
    Row("parameters show mine n --vhost {v}", "mine"),
    Row("parameters delete mine n --vhost {v}", "is deleted"),
    Row("global-parameters set g text", "VALUE is not JSON", 2),
    Row("global-parameters set g 5", "is set"),
    Row("global-parameters list", "g"),
    Row("global-parameters show g", "5"),
    Row("global-parameters delete g", "is deleted"),
    # messages
    Row("exchanges declare x/1 --type topic --vhost {v}", "is declared"),
    Row("exchanges list", "x/1"),
    Row("exchanges list --vhost {v}", "x/1"),
    Row("exchanges show x/1 --vhost {v}", "topic"),
    Row("queues declare q/1 -a x-max-priority=3 --vhost {v}", "is declared"),
    Row("queues declare q2 --vhost {v}", "is declared"),
    Row("queues bind q/1 x/1 -k k.# --vhost {v}", "is bound"),
    Row("exchanges bind x/1 amq.topic -k # --vhost {v}", "is bound"),
    Row("bindings list", "k.#"),
    Row("bindings list --vhost {v}", "k.#"),
    Row("bindings list --source x/1 --vhost {v}", "k.#"),
    Row("bindings list --queue q/1 --vhost {v}", "k.#"),
    Row("bindings list --exchange x/1 --vhost {v}", "amq.topic"),
    Row("exchanges declare later --type x-delayed-message -a x-delayed-type=fanout --vhost {v}", "is declared"),
    Row("queues bind q2 later --vhost {v}", "is bound"),
    Row("exchanges publish later soon -H x-delay=3600000 -H x-delay-key=k --vhost {v}", "published, and confirmed"),
    Row("exchanges show later --vhost {v}", "x-delayed-type=fanout"),
    Row("delayed list later --vhost {v}", "soon"),
    Row("delayed show later k --vhost {v}", "soon"),
    Row("delayed show later none --vhost {v}", "no message waits under key 'none'", 1),
    Row("delayed reschedule later --key k --at 2000000000000 --vhost {v}", "1 rescheduled"),
    Row("delayed send-now later --seq 99 --vhost {v}", "no such message waits", 1),
    Row("delayed cancel later --vhost {v}", "say which messages", 2),
    Row("pools declare jobs --set max=3 --vhost {v}", "pool 'jobs' is declared"),
    Row("pools declare jobs --template nobody --vhost {v}", "known are noop", 1),
    Row("pools set jobs --vhost {v}", "say what to set", 2),
    Row("pools set jobs --set nothing=1 --vhost {v}", "no setting 'nothing'", 1),
    Row("pools set jobs --set request_ttl_ms=60000 --vhost {v}", "request_ttl_ms set"),
    Row("pools list", "jobs"),
    Row("pools list --vhost {v}", "running"),
    Row("pools show jobs --vhost {v}", "request_ttl_ms=60000"),
    Row("exchanges publish jobs --routing-key 42 hello --vhost {v}"),
    Row("pools groups jobs --vhost {v}", "jobs-req-42"),
    Row("pools group jobs 42 --vhost {v}", "jobs-req-42"),
    Row("pools workers jobs --vhost {v}"),
    Row("pools pause jobs --vhost {v}", "is paused"),
    Row("pools resume jobs --vhost {v}", "goes on"),
    Row("pools delete jobs --vhost {v}", "1 groups", 1),
    Row("pools delete jobs --force --vhost {v}", "is being deleted"),
    Row("delayed cancel later --only payload~soon --vhost {v}", "1 cancelled"),
    Row("exchanges delete later --vhost {v}", "is deleted"),
    Row("exchanges publish amq.topic hello -k k.1 --vhost {v} -p message_id=m -H a=1", "published, and confirmed"),
    Row("exchanges publish x/1 lost -k other --vhost {v}", "no queue got the message", 1),
    Row("queues publish q/1 --vhost {v}", "published, and confirmed", stdin="second"),
    Row("queues get q/1 -n 5 --vhost {v}", "hello"),
    Row("explain message m --vhost {v}", "is in queue 'q/1', seq 1: ready"),
    Row("explain message m --vhost {v} --json", '"complete": true'),
    Row("queues get q/1 --ack --body-only --vhost {v}", "hello"),
    Row("queues get q/1 --reject --json --vhost {v}", '"payload": "second"'),
    Row("queues get q/1 --vhost {v}"),
    Row("queues publish q/1 third --vhost {v}", "confirmed"),
    Row("queues browse q/1 --vhost {v} --json", '"payload": "third"'),
    Row("queues browse q/1 --vhost {v} --only routing_key=none --json", "[]"),
    Row("queues browse q/1 --vhost {v} --only nonsense", "is no condition", 1),
    Row("queues replay-messages q/1 --only payload=third --to-queue q2 --vhost {v}", "1 replayed"),
    Row("queues browse q2 --body-only --vhost {v}", "third"),
    Row("queues move-messages q2 --only payload~third --exchange amq.default -k q/1 --vhost {v}", "1 moved"),
    Row("queues move-messages q2 --seq 99 --to-queue q/1 --vhost {v}", "0 moved; left where they are: 1 gone", 1),
    Row("queues delete-messages q/1 --only seq>1 --vhost {v}", "deleted"),
    Row("queues pause q/1 --vhost {v}", "is paused"),
    Row("queues show q/1 --vhost {v}", "paused"),
    Row("explain queue q/1 --vhost {v}", "it is paused"),
    Row("queues get q/1 --vhost {v}"),
    Row("queues resume q/1 --vhost {v}", "delivers again"),
    Row("queues purge q/1 --vhost {v}", "is purged"),
    Row("queues list", "q/1"),
    Row("queues list --vhost {v} --sort -ready --limit 1", "{v}"),
    Row("queues show q/1 --vhost {v}", "x-max-priority"),
    Row("explain queue q/1 --vhost {v}", "max_length = 40"),
    Row("explain message nobody-knows --vhost {v}", "message 'nobody-knows': none of the queues"),
    Row("queues", "replicas", ways=HERE),
    Row("queues transfer-leader q/1 b --vhost {v}", "is led by b"),
    Row("queues transfer-leader q/1 c --vhost {v}", "is led by c"),
    Row("queues leader-history q/1 --vhost {v}", "moved"),
    Row("queues leader-history", "q/1"),
    Row("queues transfer-leader q/1 none --vhost {v}", "there is no member 'none'", 1),
    Row("queues rebalance", "0 left"),
    Row("queues force-owner q/1 none --confirm-loss --vhost {v}", "there is no member 'none'", 1),
    Row("queues unbind q/1 x/1 -k k.# --vhost {v}", "no longer"),
    Row("queues unbind q/1 x/1 -k k.# --vhost {v}", "has no binding", 1),
    Row("exchanges unbind x/1 amq.topic -k # --vhost {v}", "no longer"),
    # clients
    Row("connections list", "{connection}"),
    Row("connections list --vhost / --of guest", "{connection}"),
    Row("connections show {connection}", "guest"),
    Row("channels list", "{connection}"),
    Row("channels list --vhost /", "{connection}"),
    Row("channels list --connection {connection}", "(1)"),
    Row("channels show {channel}", "prefetch"),
    Row("consumers list", "tag-{way}"),
    Row("consumers list --vhost /", "tag-{way}"),
    Row("links list --json", "[]"),  # of clients of AMQP 1.0: tests/conformance/amqp10/test_operators.py
    Row("links list --vhost / --json", "[]"),
    Row("links list --state suspended --json", "[]"),
    Row("links show nobody nothing", "nothing is found at", code=1),
    Row("links show nobody nothing --vhost /", "nothing is found at", code=1),
    Row("links expire nobody nothing --role sender --force", "nothing is found at", code=1),
    Row("links expire nobody nothing --vhost /", "nothing is found at", code=1),
    Row("producers list", "epoch"),
    Row("producers list --vhost /", "epoch"),
    Row("producers show nobody", "no producer 'nobody' in vhost '/'", code=1),
    Row("leases list", "lease"),
    Row("leases list --vhost /", "lease"),
    Row("queues declare leased --vhost {v}", "is declared"),
    Row("exchanges publish amq.lease -k take --vhost {v}", "published", stdin=TAKE),
    Row("leases end leased --vhost {v} --name other", "is leased by 'n'", code=4),
    Row("leases end leased --vhost {v} --name n", "nobody leases queue 'leased'"),
    Row("leases end leased --vhost {v}", "nobody leases queue 'leased'"),
    Row("connections close {connection} --reason test", "is closed"),
    Row("connections close --of {u}", "are closed"),
    # all of it
    Row("definitions export {file} --force", "queues"),
    Row("definitions export --vhost {v}", "q/1"),
    Row("definitions import {file} --dry-run", "nothing would change; nothing was done"),
    Row("definitions import {file}", "all definitions are there"),
    Row("definitions import {empty} --vhost {v}", "all definitions are there"),
    Row("operator-policies delete o --vhost {v}", "is deleted"),
    Row("policies delete p --vhost {v}", "is deleted"),
    Row("exchanges delete x/1 --vhost {v}", "is deleted"),
    Row("queues delete q/1 q2 --if-empty --vhost {v}", "'q2' is deleted"),
    Row("users add {u}-2", "is made", stdin="s3cret\n"),
    Row("users delete {u} {u}-2", "{u}-2"),
    Row("users add {u}", "is made", stdin="s3cret\n"),
    Row("users delete {u}", "{u}"),
    Row("vhosts delete {v} --yes", "is deleted"),
    # members
    Row("copying show", "synchronisation rate", ways=HERE),
    Row("copying rate 50MiB", ways=HERE),
    Row("copying pause", ways=HERE),
    Row("copying resume", ways=HERE),
    Row("drain --undo", "accepts queues again"),
    Row("nodes forget b --yes", "is alive", 1),
    Row("leave b", "is alive", 1, ways=HERE),
    Row("join {at} --name d --cluster {fresh} --secret-file {secret} --data-dir {newcomer}", "d may join", ways=THERE),
    # the directory of a node that was alone, and is stopped
    Row("journal ls {dir}", "kept", ways=THERE),
    Row("journal inspect {dir} kept --body", "delivery_mode=2", ways=THERE),
    Row("journal check {dir}", ways=THERE),
    Row("journal export {dir} kept --to {csv}", ways=THERE),
    Row("journal compact {dir}", ways=THERE),
)

ELSEWHERE = {
    "migrate": "tests/faults/test_migration.py", "bridges set": "tests/faults/test_bridges.py",
    "bridges list": "tests/faults/test_bridges.py", "bridges delete": "tests/faults/test_bridges.py",
    "start": "tests/faults/test_command_line.py starts its nodes by it",
    "demo": "tests/faults/test_trial.py", "verify": "tests/faults/test_trial.py", "chaos": "tests/faults/test_trial.py",
    "journal forget": "tests/unit/broker/server/test_recovery.py",
    "forget-node": "tests/faults/test_command_line.py, for a member that is dead",
    "pools drivers": "tests/unit/broker/cli/test_pool_drivers.py",
    "rescue": "tests/faults/test_rescue.py",
    "journal import": "tests/faults/test_journal_import.py",
}  # fmt: skip
"""Commands without a row, and what tries them."""
NOT_ASKED = {
    "GET /api/extensions": "plug-ins of RabbitMQ's page; there are none",
    "GET /api/connections/username/{}": "connections list --of",
    "GET /api/connections/{}/sessions": "links list --connection",
    "GET /api/bindings/{}/e/{}/q/{}/{}": "bindings list", "GET /api/bindings/{}/e/{}/e/{}/{}": "bindings list",
    "GET /api/deprecated-features": "there are none", "GET /api/deprecated-features/used": "there are none",
    "GET /api/bridges": "bridges list: tests/faults/test_bridges.py",
    "POST /api/vhosts/{}/start/{}": "a vhost runs wherever a node does",
    "GET /api/nodes/{}/memory": "nodes show tells the total", "GET /api/nodes/{}/memory/relative": "the same",
    "GET /api/healthchecks/node/{}": "checks run node asks the node that it is told of",
    "POST /api/users/bulk-delete": "users delete asks for one after the other, by either door",
    "POST /api/queues/{}/{}/actions": "RabbitMQ's mirrors are synchronised by it; copies here catch up by themselves",
}  # fmt: skip
"""Paths of the API that no command asks for, and why."""


def paths() -> set[str]:
    """Method and path of all that the management API does."""
    return {
        " ".join((getattr(entry, "method", "GET"), PARAMETER.sub("{}", entry.path)))
        for entry in (*READS, *WRITES, *ACTS, *OPERATIONS)
    }
