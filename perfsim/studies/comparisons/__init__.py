"""Comparisons of published figures with laws and equations, which plan no machine."""
