"""Bytes of a protocol to events and back, without state of the broker: one package for each protocol."""
