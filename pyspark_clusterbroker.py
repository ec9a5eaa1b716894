"""What Spark finds by itself: it imports every top-level module `pyspark_*` and registers its `DefaultSource`.

It does so in each session that looks for a data source, ours or not: so nothing heavy is imported here, and nothing
raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader
except ImportError:  # no Spark, or one of the time before Python data sources
    pass
else:
    if TYPE_CHECKING:
        from pyspark.sql.types import StructType

        from clusterbroker.pipeline.sink import BatchWriter, StreamWriter
        from clusterbroker.pipeline.source import StreamReader

    class DefaultSource(DataSource):
        """`format("clusterbroker")`."""

        @classmethod
        def name(cls) -> str:
            return "clusterbroker"

        def schema(self) -> str:
            from clusterbroker.pipeline.source import schema_of

            return schema_of(self.options)

        def reader(self, schema: StructType) -> DataSourceReader:
            from clusterbroker.pipeline.source import batch_reader

            return batch_reader(self.options, schema)

        def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
            from clusterbroker.pipeline.queue_source import stream_reader

            return stream_reader(self.options, schema)

        def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
            from clusterbroker.pipeline.sink import batch_writer

            return batch_writer(self.options, schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
            from clusterbroker.pipeline.sink import stream_writer

            return stream_writer(self.options, schema, overwrite)
