"""What a person reads: the terminal table, the JSON summary and the self-contained HTML page.

Everything here takes finished results and adds nothing to them; `terminal` and `table` load no Plotly.
"""
