"""File formats of other tools: traces, and settings that run a plan."""
