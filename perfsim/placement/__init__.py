"""What a graph puts on the network: which ranks differ, which links are shared, which of them bind."""
