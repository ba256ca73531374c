"""Sampled GEMMs computed in NumPy as the simulated machines would, to verify the partitions."""
