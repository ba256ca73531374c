"""One question answered: a layout is planned, its graph placed on the network, run and explained."""
