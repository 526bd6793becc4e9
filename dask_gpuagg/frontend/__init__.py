"""The seam to Dask: wrapping its optimizer, reading its expressions."""
