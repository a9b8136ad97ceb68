"""How roles become processes: fork servers, the pool of children, or one process for all (`serial`)."""
