"""Proofs of schedules: a strategy's graph, run in NumPy on a small model, equals serial training."""
