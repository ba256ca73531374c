"""What verbs print on a terminal: plain text without colours, as wide as the terminal."""
