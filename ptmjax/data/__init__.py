"""From text to batches, deterministic and by index."""
