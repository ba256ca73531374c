"""Published runs: their case files, plans and graphs."""
