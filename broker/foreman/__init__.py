"""The foreman: starts and stops the workers of one place, so that they are what the map of pools wants."""
