"""Chaos in rounds: load, a round's faults, heal, settle, judge; then the next round with a new history.

A round that does not settle is a failed one: messages are missing, or the cluster did not come back in time. The
trial goes on after a failed round only if the cluster settles, so that one mistake is not counted a hundred times.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clusterbroker.broker.trial.client import ClientLost
from clusterbroker.broker.trial.faults import Kind, Nemesis, Step, plan
from clusterbroker.broker.trial.judge import Verdict, judge, judge_maps, judge_owners
from clusterbroker.broker.trial.load import Load
from clusterbroker.broker.trial.nodes import TrialError
from clusterbroker.broker.trial.recoverable_load import RecoverableLoad

SETTLE_TIMEOUT_S: Final = 180.0
AFTER_S: Final = 0.5
"""load goes on for so long after the last fault of a round"""


@dataclass(slots=True)
class Round:
    """What one round was and said."""

    number: int
    done: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    trouble: str = ""
    """why it did not come to its end; "" when it did"""
    settle_s: float = 0.0

    @property
    def passed(self) -> bool:
        return self.verdict.passed and not self.trouble


@dataclass(slots=True)
class Trial:
    """The sum of all rounds."""

    rounds: list[Round] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    owners: int = 0
    """changes of owner that the nodes logged"""
    maps: int = 0
    """maps that were compared"""

    @property
    def passed(self) -> bool:
        return self.verdict.passed and all(round_.passed for round_ in self.rounds)

    @property
    def trouble(self) -> str:
        return "; ".join(f"round {round_.number}: {round_.trouble}" for round_ in self.rounds if round_.trouble)


async def run_rounds(
    nemesis: Nemesis,
    load: Load,
    seed: int,
    rounds: int,
    told: Callable[[Round], None],
    living: bool = True,
    evidence: Path | None = None,
    planned: Sequence[Step] = (),
    links: RecoverableLoad | None = None,
) -> Trial:
    """Runs all rounds; `told` hears of each when it is over. Histories of failed rounds are kept in `evidence`.

    `planned` gives the rounds one step each instead of chance, the first to the first.
    `links`: clients of AMQP 1.0 beside the load, which are killed and stopped as well.
    """
    trial = Trial()
    settled_below: dict[int, int] = {}
    for number in range(1, rounds + 1):
        round_ = Round(number)
        trial.rounds.append(round_)
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 - a seed replays it
        load.resume()
        tormented = None
        if links is not None:
            links.resume()
            tormented = asyncio.create_task(links.torment(random.Random(f"{seed}/{number}/clients")))  # noqa: S311
        doubtful = False  # what a machine that stood still hands out at first may be with somebody else (decision 023)
        try:
            drawn = plan(chance, nemesis.cluster.names, nemesis.kinds())
            for step in planned[number - 1 : number] or drawn:
                doubtful = doubtful or step.kind is Kind.STAND_STILL
                round_.done.append(await nemesis.carry_out(step, chance))
            await asyncio.sleep(AFTER_S)
            await nemesis.heal()
        except (TrialError, ClientLost) as error:
            round_.trouble = str(error)
            await _quietly(nemesis)
        if tormented is not None:
            round_.done += await tormented
        began_s = time.monotonic()
        unsettled = await load.settle(SETTLE_TIMEOUT_S)
        round_.settle_s = time.monotonic() - began_s
        if links is not None:
            unsettled = unsettled or await links.settle(SETTLE_TIMEOUT_S)
        round_.trouble = round_.trouble or unsettled
        if load.mistakes:
            round_.trouble = f"the trial itself failed: {load.mistakes[0]!r}"
        history, next_below = load.new_history()
        round_.verdict = judge(history.events, settled_below, True, living and not doubtful, load.plan.numbered)
        settled_below = next_below
        if links is not None:
            round_.verdict.add(links.verdict())
        maps = await nemesis.cluster.maps()
        round_.verdict.add(judge_maps(maps))
        trial.maps += len(maps)
        trial.verdict.add(round_.verdict)
        if not round_.passed and evidence is not None:
            (evidence / f"history-{number}.jsonl").write_bytes(history.dump())
        told(round_)
        if unsettled or load.mistakes:
            break
    events = nemesis.cluster.events()
    trial.verdict.add(judge_owners(events))
    trial.owners = len(events)
    return trial


async def _quietly(nemesis: Nemesis) -> None:
    """Heals as far as it goes: the round is a failed one already."""
    try:
        await nemesis.heal()
    except TrialError:
        pass
