"""The page of a sweep: cards, maps, tables and variants."""
