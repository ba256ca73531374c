"""Predictions compared with published runs: scored, explained, and repeated with each family left out."""
