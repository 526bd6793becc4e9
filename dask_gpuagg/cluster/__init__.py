"""Requests of the client to a cluster: versions, workers, places of partitions."""
