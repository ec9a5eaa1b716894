"""docs/figures.md from the newest whole results of one kind of machine; run it to write the page:

python -m bench.figures_page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = HERE.parent / "docs" / "figures.md"
MACHINE: Final = "2x-intel-xeon-processor-24gib"
BEGIN: Final = "<!-- figures: begin -->"
END: Final = "<!-- figures: end -->"

SECTIONS: Final = (
    (
        "Bound by the disk",
        "A backlog of five million durable messages, written whole while nobody consumes, then drained; and starts "
        "with it.",
        (("", "backlog"), ("", "restart")),
    ),
    (
        "Three nodes, three replicas, fsync",
        "Queues on all three nodes, publishers and consumers on different ones, all processes on the same two cores. "
        "RabbitMQ's queues are quorum queues. A confirm waits for the disk of every in-sync replica, or for the "
        "message's acknowledgement, whatever comes first.",
        (
            ("cluster", "cluster-one"), ("cluster", "cluster-spread"), ("cluster", "cluster-latency"),
            ("cluster", "cluster-memory"), ("cluster", "cluster-rotating"), ("cluster", "cluster-declare"),
        ),
    ),
    (
        "Failures of a node under load",
        "The longest pause that any publisher or consumer saw.",
        (("cluster", "cluster-kills"), ("cluster", "cluster-freeze"), ("cluster", "cluster-return"),
         ("cluster", "cluster-move")),
    ),
    ("One node at a fixed rate", "Latency from publish to delivery.", (("", "latency"),)),
    (
        "One node, durable, consumers keep up",
        "Publishers wait for confirms (window of 1,000), consumers acknowledge. clusterbroker does not write a "
        "message that was acknowledged before its group commit "
        "([decision 5](decisions/005-patience-of-the-group-commit.md)): these rates are bound by the processor, not "
        "by the disk.",
        (("", "durable"), ("", "durable-1k"), ("", "durable-16k"), ("", "fan")),
    ),
    ("One node, nothing durable", "No confirms, automatic acknowledgement.", (("", "transient"),)),
    ("At rest", "", (("", "connections"), ("", "queues"), ("", "cold-start"))),
)  # fmt: skip
"""Heading, introduction, and (kind of results, name of a workload)."""


def newest(kind: str) -> Path:
    """The newest whole results: of one node (""), or of "cluster"."""
    return max(HERE.glob(f"results/*-{MACHINE}{'-' if kind else ''}{kind}.json"))


def number(value: float | None) -> str:
    """With three digits that count."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{round(value, -int(len(str(int(abs(value)))) - 3)):,.0f}"
    return f"{value:.3g}"


def row(figure: dict[str, Any], *, first: bool) -> str:
    unit = f" ({figure['unit']})" if figure["unit"] else ""
    ratio = figure["ratio"]
    times = "" if ratio is None else f"{ratio:.2g} x" if ratio < 10 else f"{ratio:.0f} x"
    workload = figure["workload"] if first else ""
    cells = (workload, figure["figure"] + unit, number(figure["ours"]), number(figure["peer"]), times)
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """The part of the page that is made."""
    results = {kind: json.loads(newest(kind).read_text()) for kind in ("", "cluster")}
    rows = {(kind, measured["name"]): measured for kind, result in results.items() for measured in result["rows"]}
    machine, settings = results[""]["machine"], results[""]["settings"]
    disk = machine["fdatasync_4kib_ms"]
    parts = [
        f"Measured {settings['date']}, commit {machine['commit']}: {machine['cores']} cores of an {machine['cpu']}, "
        f"{machine['memory_gib']} GiB, {machine['file_system']} on a virtual disk whose `fdatasync` of 4 KiB takes "
        f"{disk['p50']:.2g} ms (p99 {disk['p99']:.2g} ms), Python {machine['python']}. The medians of "
        f"{settings['rounds']} rounds, both brokers in turn. Ratio: clusterbroker divided by "
        "RabbitMQ; for times and memory less is better.",
    ]
    for heading, words, names in SECTIONS:
        table = ["| workload | figure | clusterbroker | RabbitMQ | ratio |", "|---|---|---:|---:|---:|"]
        for key in names:
            figures = rows[key]["figures"]
            table += [row(figure, first=place == 0) for place, figure in enumerate(figures)]
        parts.append("\n\n".join(filter(None, (f"## {heading}", words, "\n".join(table)))))
    sources = ", ".join(
        f"[{'one node' if not kind else 'three nodes'}](../bench/results/{newest(kind).with_suffix('.md').name})"
        for kind in results
    )
    parts.append(f"All figures of these runs, with targets that were met and missed: {sources}.")
    return "\n\n".join(parts)


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
