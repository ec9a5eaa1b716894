"""A cluster on trial from outside: clients that write down what they saw, faults, and a judge of the history."""
