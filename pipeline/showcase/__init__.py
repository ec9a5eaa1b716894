"""Meter readings from files through Spark and a cluster of three nodes to Parquet, with both ends compared.

    readings    makes the input: lines of JSON, some late, some twice, some broken; the same for the same seed
    frames      what is done with rows
    job         the Spark job: files -> checks, duplicates, windows -> the broker -> files by date
    reconcile   compares what came out with what went in
    consumers   programs that take alarms and totals from the broker meanwhile
    nodes       three nodes as processes, one of which is killed
    watch       what has got how far, for the progress bar and the picture
    plot        the picture

`python -m clusterbroker.pipeline.showcase` runs all of it; `job` alone is what `spark-submit` runs on a cluster.
"""
