"""Published runs: their case files, and the question, plan and graph of each case."""
