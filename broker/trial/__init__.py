"""A cluster on trial, from outside: clients that write down what they saw, faults, and a judge of the history.

    client.py     a small AMQP client that sees everything        relay.py      the wires between nodes, to be cut
    load.py       publishers and consumers who write a history    nodes.py      processes of nodes, to be killed
    history.py    what they saw                                   faults.py     what is done to nodes and wires, by seed
    judge.py      from a history to a verdict                     rounds.py     load, faults, heal, drain, judge; again
    event_log.py  who owned what, by the nodes' own logs

`clusterbroker demo`, `verify` and `chaos` are made of these. Nothing here knows how a node works inside, so that it
may be put upon another broker: `tests/faults/rabbitmq_trial.py` does, to try the trial.
"""
