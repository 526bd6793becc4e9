"""Tasks of a planned group-by, as they run on a worker."""
