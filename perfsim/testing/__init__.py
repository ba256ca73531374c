"""Second ways to the same figures, which tests hold the models against."""
