"""AMQP 1.0 for programs that are no node: a client library. It needs the codec of `broker.wire`, and nothing else."""
