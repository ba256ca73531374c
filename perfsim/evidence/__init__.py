"""Predictions of published runs: scored, explained, and repeated with each family left out of the fit."""
