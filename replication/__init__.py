"""Replication of queues: primary, backups, catch-up, the in-sync set.

Empty until the cluster is built. What it will drive is in place: `Ring.write` emits a queue's records,
`Ring.commit` takes the watermark that the required answers have passed (docs/design/002-one-node.md).
"""
