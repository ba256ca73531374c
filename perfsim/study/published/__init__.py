"""Published runs: predicted, scored, explained, and what they say of how sure an answer is."""
