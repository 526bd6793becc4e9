"""``python -m dask_gpuagg``: the same as the command ``dask-gpuagg``."""

from dask_gpuagg.cli import main

if __name__ == "__main__":
    main()
