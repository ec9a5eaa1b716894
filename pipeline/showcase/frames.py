"""What the job does with rows, as functions of frames, streaming or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusterbroker.pipeline.showcase.readings import REGIONS, VOLTS, WH_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXCHANGE: Final = "readings"
MALFORMED: Final = "readings.malformed"
ARCHIVE: Final = "archive"
SCHEMA: Final = "id string, device string, region string, at timestamp, wh bigint, volts double"
COLUMNS: Final = ("id", "device", "region", "at", "wh", "volts")
LATE_MAX: Final = "2 hours"
"""A reading that is later is left out of windows, and a second one with its id is not known any more."""


def _is_reading() -> str:
    regions = ", ".join(f"'{region}'" for region in REGIONS)
    said = f"id IS NOT NULL AND device IS NOT NULL AND region IN ({regions}) AND at IS NOT NULL"
    return f"coalesce({said} AND wh BETWEEN 0 AND {WH_MAX} AND volts IS NOT NULL, false)"


def parsed(lines: DataFrame) -> DataFrame:
    """Lines of text with the columns that they say."""
    return lines.selectExpr("value", f"from_json(value, '{SCHEMA}') AS said").selectExpr("value", "said.*")


def valid(lines: DataFrame) -> DataFrame:
    """What is a reading."""
    return parsed(lines).where(_is_reading()).select(*COLUMNS)


def once(readings: DataFrame) -> DataFrame:
    """Each reading of a stream the first time that it comes."""
    return readings.withWatermark("at", LATE_MAX).dropDuplicatesWithinWatermark(["id"])


def reading_messages(readings: DataFrame) -> DataFrame:
    low, high = VOLTS
    return readings.selectExpr(
        "to_json(struct(*)) AS value",
        f"concat(region, CASE WHEN volts BETWEEN {low} AND {high} THEN '.ok' ELSE '.alarm' END) AS routing_key",
        "id AS message_id",
        "at AS timestamp",
        "'application/json' AS content_type",
    )


def window_messages(readings: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    sums = readings.groupBy(f.window("at", "15 minutes").alias("window"), "region")
    return sums.agg(f.count("*").alias("readings"), f.sum("wh").alias("wh")).selectExpr(
        "to_json(struct(window.start, window.end, region, readings, wh)) AS value",
        "concat(region, '.window') AS routing_key",
        "'application/json' AS content_type",
    )


def malformed_messages(lines: DataFrame) -> DataFrame:
    return parsed(lines).where(f"NOT {_is_reading()}").selectExpr("value", "'malformed' AS routing_key")


def archived(stream: DataFrame) -> DataFrame:
    """Readings as the broker archived them, with the date that they are of."""
    rows = stream.selectExpr("offset", f"from_json(cast(value AS string), '{SCHEMA}') AS said")
    return rows.selectExpr("offset", "said.*", "to_date(said.at) AS date")
