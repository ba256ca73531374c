"""Execution of a whole training schedule in NumPy, compared with serial training."""
