"""Measures this broker against RabbitMQ on the same machine: `python -m bench` or `scripts/bench`."""
