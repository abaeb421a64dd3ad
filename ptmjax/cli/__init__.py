"""The commands; the only place that imports gin."""
