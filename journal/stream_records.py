"""Parts of a run of a stream's records: the compiled half or its twin (`journal.build`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.journal.build import COMPILED

if TYPE_CHECKING or not COMPILED:
    from clusterbroker.journal.stream_records_pure import prove_run, take_records
else:
    from clusterbroker.journal.walk_fast import prove_run, take_records

__all__ = ["prove_run", "take_records"]
