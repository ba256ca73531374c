"""Grids of questions: expanded, computed once on several processes, kept, compared."""
