"""The page and the terminal table of predictions beside published runs."""
