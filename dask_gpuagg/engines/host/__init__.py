"""The host engine: pandas partitions, on NumPy, Numba, pandas and Arrow."""
