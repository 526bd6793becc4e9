"""Setup of a GPU worker before its first query."""
