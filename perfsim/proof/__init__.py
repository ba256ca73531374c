"""Proving schedules: a strategy's own graph, executed for a small model and held against serial training."""
