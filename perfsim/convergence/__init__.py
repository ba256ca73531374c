"""From step time to time-to-accuracy: critical batch, loss laws, goodput. Pure functions of numbers."""
