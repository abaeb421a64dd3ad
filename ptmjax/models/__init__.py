"""Embedders, heads and networks."""
