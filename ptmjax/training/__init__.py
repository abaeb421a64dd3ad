"""State, the one step, the loop, checkpoints."""
