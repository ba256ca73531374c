"""A whole training schedule executed in NumPy: to see that it computes what serial training does."""
