"""Sweeps: a study asked at every point of a grid, computed in parallel, stored and compared."""
