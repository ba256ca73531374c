"""Cost models: seconds and bytes of the work in a task graph."""
