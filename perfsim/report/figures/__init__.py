"""One file per figure; each is a pure function from results to a Plotly figure.

Beside each figure stand its table (`*_table`: the same numbers as text) and its alternative text
(`*_alt`: what the picture shows, in a sentence), so that a page never has a picture alone.
"""
