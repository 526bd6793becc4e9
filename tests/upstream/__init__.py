"""Dask's own suites with the plugin on."""

LEAST_SHARE = 99.0
