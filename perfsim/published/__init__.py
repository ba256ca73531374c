"""Published runs as questions: their files, the plan of each, and its graph."""
