"""The wiring log of a cluster: Raft by pysyncobj behind guard rails; `raft_log.RaftLog` is the entry."""
