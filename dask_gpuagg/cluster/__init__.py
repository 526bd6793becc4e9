"""What the client asks of a cluster: versions, workers, where partitions lie."""
