"""How roles become processes: fork servers, their children, or one process for all roles (`serial`)."""
