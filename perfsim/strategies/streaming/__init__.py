"""Weight streaming: layers come from MemoryX, gradients go back to it."""
