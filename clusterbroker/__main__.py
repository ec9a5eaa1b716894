"""`python -m clusterbroker`: the command, where its script is not on the path."""

from clusterbroker.broker.cli.entry import main

main()
