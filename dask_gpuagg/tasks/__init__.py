"""What the tasks of a planned group-by do on a worker."""
