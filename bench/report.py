"""From runs to a table: medians, ratios, verdicts, and the two files that keep them.

The arithmetic is pure. A side's figure is the median of its clean runs; a run with a fault (a loss, a duplicate, a
wrong order, a broker that died) never counts towards it and makes the row a failed one.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.scenarios import Measurement
from bench.workloads import Bound, Figure, Target, Workload


class Verdict(StrEnum):
    """What a figure says about its target."""

    MET = "met"
    MISSED = "missed"
    FAILED = "FAILED"
    """a run of ours had a fault: no figure may be claimed"""
    OPEN = "no peer"
    """the target is a ratio and the peer was not measured"""
    NONE = ""
    """no target: for the reader"""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of one row, both sides."""

    workload: str
    figure: str
    unit: str
    ours: float | None
    peer: float | None
    ratio: float | None
    target: str
    verdict: Verdict


@dataclass(slots=True)
class Row:
    """All runs of one workload."""

    workload: Workload
    ours: list[Measurement] = field(default_factory=list)
    peer: list[Measurement] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """The faults of our own runs."""
        return [fault for run in self.ours for fault in run.faults]

    @property
    def peer_faults(self) -> list[str]:
        """The faults of the peer's runs: said, but not held against us."""
        return [fault for run in self.peer for fault in run.faults]


def median_of(runs: Sequence[Measurement], key: str) -> float | None:
    """The median of a figure over the clean runs that have it; None without any."""
    values = [run.figures[key] for run in runs if not run.faults and key in run.figures]
    return statistics.median(values) if values else None


def ratio_of(ours: float | None, peer: float | None) -> float | None:
    """Ours divided by the peer's; None where one side is missing or the peer's is zero or below."""
    if ours is None or peer is None or peer <= 0:
        return None
    return ours / peer


def judge(target: Target | None, ours: float | None, ratio: float | None, failed: bool) -> Verdict:
    """Whether a target is met. A failed run is never met, whatever its figure."""
    if failed:
        return Verdict.FAILED
    if target is None:
        return Verdict.NONE
    measured = ratio if target.bound in (Bound.RATIO_MIN, Bound.RATIO_MAX) else ours
    if measured is None:
        return Verdict.OPEN if ours is not None else Verdict.FAILED
    at_least = target.bound in (Bound.RATIO_MIN, Bound.MIN)
    met = measured >= target.value if at_least else measured <= target.value
    return Verdict.MET if met else Verdict.MISSED


def target_text(figure: Figure) -> str:
    """A target as the table shows it: `>= 15 x`, `<= 300 MB`, or nothing."""
    target = figure.target
    if target is None:
        return ""
    sign = ">=" if target.bound in (Bound.RATIO_MIN, Bound.MIN) else "<="
    unit = "x" if target.bound in (Bound.RATIO_MIN, Bound.RATIO_MAX) else figure.unit
    return f"{sign} {target.value:g} {unit}"


def number(value: float | None) -> str:
    """Three significant digits, whole numbers with thousands separators, `-` for none."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def lines_of(row: Row) -> list[Line]:
    """One line per figure of the row's workload."""
    failed = bool(row.faults)
    lines = []
    for figure in row.workload.figures:
        ours, peer = median_of(row.ours, figure.key), median_of(row.peer, figure.key)
        ratio = ratio_of(ours, peer) if figure.unit != "%" else None  # a share is a ratio already
        verdict = judge(figure.target, ours, ratio, failed)
        lines.append(
            Line(row.workload.title, figure.title, figure.unit, ours, peer, ratio, target_text(figure), verdict)
        )
    return lines


def markdown(rows: Sequence[Row], ours: str, peer: str | None) -> str:
    """The table, and under it what failed, in words."""
    header = f"| workload | figure | {ours} | {peer or 'no peer'} | ratio | target | verdict |"
    text = [header, "|---|---|---:|---:|---:|---|---|"]
    for row in rows:
        title = row.workload.title
        for line in lines_of(row):
            ratio = f"{number(line.ratio)} x" if line.ratio is not None else "-"
            cells = [title, f"{line.figure} ({line.unit})", number(line.ours), number(line.peer), ratio]
            text.append("| " + " | ".join([*cells, line.target, line.verdict.value]) + " |")
            title = ""
    faults = [f"- {row.workload.name}, {ours}: {fault}" for row in rows for fault in row.faults]
    faults += [f"- {row.workload.name}, {peer}: {fault}" for row in rows for fault in row.peer_faults]
    if faults:
        text += ["", "Runs that failed (their figures do not count):", "", *faults]
    return "\n".join(text) + "\n"


def machine_text(machine: dict[str, Any], versions: dict[str, str]) -> str:
    """The machine and the versions as a paragraph above the table."""
    sync = machine["fdatasync_4kib_ms"]
    parts = [
        f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {machine['file_system']}, fdatasync of a 4 KiB append "
        f"p50 {sync['p50']} ms / p99 {sync['p99']} ms, interpreter start {machine['interpreter_start_s']} s."
    ]
    if "generator" in machine:
        limits = machine["generator"]
        parts.append(
            f"The load generator against a bare relay: {number(limits['ceiling_per_s'])} msg/s; at 10,000 msg/s "
            f"p50 {number(limits['floor_p50_ms'])} ms / p99 {number(limits['floor_p99_ms'])} ms."
        )
    if "load_average_before" in machine:
        parts.append(f"Load average before: {machine['load_average_before']}.")
    if machine.get("commit"):
        parts.append(f"Commit {machine['commit']}.")
    parts.append("Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".")
    return " ".join(parts) + "\n"


def verdict_text(rows: Sequence[Row]) -> tuple[bool, str]:
    """(no run of ours failed, the last line of the benchmark)."""
    lines = [line for row in rows for line in lines_of(row)]
    judged = [line for line in lines if line.target]
    met = sum(line.verdict is Verdict.MET for line in judged)
    missed = sum(line.verdict is Verdict.MISSED for line in judged)
    unjudged = sum(line.verdict is Verdict.OPEN for line in judged)
    failed = [row.workload.name for row in rows if row.faults]
    ratios = [
        f"{row.workload.name} {number(lines_of(row)[0].ours)} {row.workload.figures[0].unit}"
        + (f" = {number(ratio)} x" if (ratio := lines_of(row)[0].ratio) is not None else "")
        for row in rows
        if row.ours and not row.faults
    ]
    said = f"{met} of {len(judged)} targets met, {missed} missed"
    said += f", {unjudged} without a peer" if unjudged else ""
    said += f", FAILED runs in: {', '.join(failed)}" if failed else ", no message lost, doubled or out of order"
    return not failed, f"bench {'failed' if failed else 'done'}: {'; '.join([said, *ratios])}"


def write(
    directory: Path,
    stem: str,
    rows: Sequence[Row],
    machine: dict[str, Any],
    settings: dict[str, Any],
    ours: str,
    peer: str | None,
) -> tuple[Path, Path]:
    """Writes STEM.json with every run and STEM.md with the table; returns both paths."""
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "settings": settings,
        "machine": machine,
        "rows": [
            {
                "name": row.workload.name,
                "title": row.workload.title,
                "load": asdict(row.workload.load),
                "figures": [asdict(line) for line in lines_of(row)],
                "runs": {
                    ours: [asdict(run) for run in row.ours],
                    peer or "peer": [asdict(run) for run in row.peer],
                },
            }
            for row in rows
        ],
    }  # fmt: skip
    json_path, table_path = directory / f"{stem}.json", directory / f"{stem}.md"
    json_path.write_text(json.dumps(document, indent=1) + "\n")
    heading = f"# {ours} against {peer or 'nothing'}, {settings['date']}\n\n"
    scale = f"Rounds {settings['rounds']}, {settings['scale']}.\n\n"
    body = machine_text(machine, settings["versions"]) + "\n" + scale + markdown(rows, ours, peer)
    table_path.write_text(heading + body)
    return json_path, table_path
