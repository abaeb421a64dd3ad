"""Probes of frozen encoders."""
