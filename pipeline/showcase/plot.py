"""The picture of a run: rows per second at each stage, and the moments at which something was killed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from clusterbroker.pipeline.showcase.watch import Sample

BIN_S: Final = 1.0
BINS_MAX: Final = 150
"""More make the file larger and the picture no clearer: bins of longer runs are as many seconds wide as that needs."""
_STAGES: Final = {
    "fed": "lines in files",
    "archived": "in the archive stream",
    "consumed": "taken by a consumer",
    "filed": "in Parquet",
}


def rates(samples: Sequence[Sample], field: str, bin_s: float = BIN_S) -> list[tuple[float, float]]:
    """(middle of a bin, rows per second in it), from cumulative counts."""
    found: list[tuple[float, float]] = []
    edge_s, before, at_edge = 0.0, 0, 0
    for sample in samples:
        while sample.at_s >= edge_s + bin_s:
            found.append((edge_s + bin_s / 2, (before - at_edge) / bin_s))
            edge_s, at_edge = edge_s + bin_s, before
        before = getattr(sample, field)
    return found


def steps(found: Sequence[tuple[float, float]], bin_s: float) -> tuple[list[float], list[float]]:
    """(heights, edges), bins of the same height taken together: edges are one more than heights."""
    heights, edges = [found[0][1] if found else 0.0], [0.0]
    for (_, before), (at_s, rate) in pairwise(found):
        if rate != before:
            heights.append(rate)
            edges.append(at_s - bin_s / 2)
    return heights, [*edges, max(len(found), 1) * bin_s]


def draw(samples: Sequence[Sample], kills: Mapping[str, float], title: str, path: Path) -> None:
    """As .svg or .png; `kills` are names and seconds. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "showcase", "svg.fonttype": "none"})  # the same picture from the same run
    from matplotlib import pyplot

    ends_s = max(samples[-1].at_s if samples else 0.0, BIN_S)
    bin_s = math.ceil(ends_s / BINS_MAX / BIN_S) * BIN_S
    figure, axes = pyplot.subplots(len(_STAGES), sharex=True, figsize=(9, 6), layout="constrained")
    figure.suptitle(title)
    for axis, (field, name) in zip(axes, _STAGES.items(), strict=True):
        heights, edges = steps(rates(samples, field, bin_s), bin_s)
        axis.stairs(heights, edges, fill=True, facecolor="#7fb2d9", edgecolor="#1f6aa5", linewidth=0.8)
        axis.set_title(name, loc="left", fontsize="small")
        axis.set_ylabel("rows/s", fontsize="small")
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.spines[["top", "right"]].set_visible(False)
        for at_s in kills.values():
            axis.axvline(at_s, color="crimson", linestyle="--", linewidth=1)
    axes[0].set_xlim(0, ends_s)
    for place, (name, at_s) in enumerate(kills.items()):
        is_late = at_s > 0.7 * ends_s
        axes[0].annotate(
            f"kill -9: {name}", (at_s, 1), xycoords=("data", "axes fraction"), color="crimson", fontsize="small",
            xytext=(-4 if is_late else 4, -2 - 12 * place), textcoords="offset points", va="top",
            ha="right" if is_late else "left",
        )  # fmt: skip
    axes[-1].set_xlabel("seconds")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
