"""`clusterbroker rescue`: the majority is lost for good, and one survivor becomes a cluster of one (waits)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from clusterbroker.broker.cli.administration import DATA_DIR, DataDir
from clusterbroker.broker.cli.exit_codes import FAILED, NOT_ALLOWED, Failed, end
from clusterbroker.broker.cli.operator_door import foreign
from clusterbroker.broker.cli.readable import visible
from clusterbroker.broker.cli.tables import counted
from clusterbroker.broker.server.member.rescue import Finding, NoRescue, found, held
from clusterbroker.broker.server.member.rescue import rescue as make_it_so
from clusterbroker.cluster.errors import ClusterError, WiringError, queue_text
from clusterbroker.cluster.wiring.rescue import Copy
from clusterbroker.journal.errors import JournalError

NAMES_MAX = 50


def rescue(
    yes: Annotated[
        bool, typer.Option("--yes", help="Carry it out. Without this option and a terminal the command only reports.")
    ] = False,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """After the loss of the majority: turn this directory's stopped member into a cluster of one."""
    try:
        with held(data_dir):
            finding = found(data_dir)
            for line in told(data_dir, finding):
                typer.echo(visible(line))
            if not yes and not (sys.stdin.isatty() and typer.confirm("Shall this be?", err=True)):
                end(Failed("nothing was changed; to do it, say --yes", FAILED))
            aside = make_it_so(data_dir, finding)
    except PermissionError as error:
        end(Failed(foreign(Path(error.filename or data_dir)), NOT_ALLOWED))
    except (NoRescue, WiringError, ClusterError, JournalError, ValueError, OSError) as error:
        end(Failed(str(error)))
    typer.echo(
        f"{finding.name} is a cluster of one; its old wiring log is kept as {visible(str(aside))}. Start it with "
        f"--name {finding.name} --cluster HOST:PORT, then let others join it, each with an empty data directory"
    )


def told(directory: Path, finding: Finding) -> list[str]:
    """The plan, and possible losses."""
    lost = ", ".join(finding.lost) or "nobody"
    until = datetime.fromtimestamp(finding.until_ms / 1000).astimezone().isoformat(" ", "minutes")
    when = f", of {until} or some minutes later" if finding.until_ms else ""
    counts = Counter(one.copy for one in finding.queues)
    return [
        f"{directory}: member {finding.name}. Taken out for good: {lost}. Never start them again with their old data "
        "directories: several of them might be a majority of the old cluster, and go on with it",
        *(
            f"this member's Raft log is of an earlier time ({why}). What the cluster did after that is not known here, "
            "and copies that count as whole may not be: rescue another member's directory if there is one"
            for why in (finding.went_back,)
            if why
        ),
        f"known here: the wiring up to index {finding.wiring.end}{when}. What the others did without this node after "
        "that is lost",
        *(
            f"  index {index} ({type(command).__name__}) may not have been committed: it is kept"
            for index, command in finding.wiring.unsure
        ),
        f"durable queues: {len(finding.queues)}. Here of {counts[Copy.WHOLE]}: {Copy.WHOLE.value}",
        *_worse(finding, counts),
        *(
            f"  kept, set aside: {counted(finding.messages[queue_id], 'message')} of an unknown queue with the id "
            f"{queue_id:#x} (clusterbroker journal export {directory} {queue_id:#x} --to FILE)"
            for queue_id in finding.unknown[:NAMES_MAX]
        ),
    ]


def _worse(finding: Finding, counts: Counter[Copy]) -> Iterator[str]:
    """Queues with certain or possible losses."""
    worse = sorted((one for one in finding.queues if one.copy is not Copy.WHOLE), key=lambda one: one.copy.name)
    for one in worse[:NAMES_MAX]:
        count = finding.messages.get(one.queue.queue_id, 0)
        here = f" (here: {counted(count, 'message')})" if one.copy is Copy.BEHIND else ""
        yield f"  {queue_text(one.queue.vhost, one.queue.name)}: {one.copy.value}{here}"
    if len(worse) > NAMES_MAX:
        kinds = "; ".join(f"of {counts[copy]} {copy.value}" for copy in Copy if copy is not Copy.WHOLE and counts[copy])
        yield f"  and {len(worse) - NAMES_MAX} more. In all: {kinds}"
