"""Losses over networks."""
