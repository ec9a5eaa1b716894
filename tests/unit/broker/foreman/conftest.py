"""Beside this file: `foreman_support`."""
