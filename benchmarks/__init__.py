"""Benchmarks: data, queries, and the harness that runs them (see ``README.md``)."""
