"""Replication of queues: primary, backups, catch-up, the in-sync set.

`Ring.write` emits a queue's records, and `Ring.commit` takes the watermark that the required answers have passed
(docs/design/002-one-node.md).
"""
