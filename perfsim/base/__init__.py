"""What every room builds on: errors, units, whole-file writes, the base of specs."""
