"""What a client sees: AMQP, exchanges, queues, sessions, the command line, and a node inside your tests."""
