"""Placing a graph on a network: which ranks differ, which links they share, and which of those links bind."""
