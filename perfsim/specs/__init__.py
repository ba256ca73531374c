"""What a person describes: one file a noun, in SI units."""
