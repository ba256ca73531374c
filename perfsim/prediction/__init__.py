"""From a question to its prediction: a layout is planned, its graph placed, simulated and explained."""
