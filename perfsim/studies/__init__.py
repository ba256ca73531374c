"""Studies: several machines compared on one training run, each at its own best batch."""
