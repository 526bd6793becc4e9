"""What a GPU worker does before its first query."""
