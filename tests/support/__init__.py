"""What the tests' harnesses have in common."""
