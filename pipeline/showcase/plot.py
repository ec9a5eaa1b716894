"""The picture of a run: rows per second at each stage, and the moments at which something was killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pipeline.showcase.watch import Sample

BIN_S: Final = 1.0
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


def draw(samples: Sequence[Sample], kills: Mapping[str, float], title: str, path: Path) -> None:
    """As .svg or .png; `kills` are names and seconds. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "showcase", "svg.fonttype": "none"})  # the same picture from the same run
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(_STAGES), sharex=True, figsize=(9, 6), layout="constrained")
    figure.suptitle(title)
    for axis, (field, name) in zip(axes, _STAGES.items(), strict=True):
        points = rates(samples, field)
        axis.fill_between([at for at, _ in points], [rate for _, rate in points], step="mid", alpha=0.35)
        axis.step([at for at, _ in points], [rate for _, rate in points], where="mid", linewidth=1)
        axis.set_title(name, loc="left", fontsize="small")
        axis.set_ylabel("rows/s", fontsize="small")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        for at_s in kills.values():
            axis.axvline(at_s, color="crimson", linestyle="--", linewidth=1)
    for name, at_s in kills.items():
        axes[0].annotate(name, (at_s, 1), xycoords=("data", "axes fraction"), color="crimson", fontsize="small",
                         xytext=(4, -2), textcoords="offset points", va="top")  # fmt: skip
    axes[-1].set_xlabel("seconds")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
