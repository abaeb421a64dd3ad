"""Published checkpoints in and out: one name table a family, both ways."""
