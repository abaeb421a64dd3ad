"""Mesh, sharding and distributed start."""
