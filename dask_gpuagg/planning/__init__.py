"""From a group-by that was read to physical nodes: chunks, route, number of outputs."""
