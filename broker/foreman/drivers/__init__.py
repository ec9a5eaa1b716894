"""Drivers: one way each of running a worker."""
