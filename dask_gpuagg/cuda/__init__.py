"""Run-time compilation and launching of the kernels; nothing here knows Dask or cuDF."""
