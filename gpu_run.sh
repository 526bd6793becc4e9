#!/usr/bin/env bash
# part 1: tests
set -u
bash /tmp/p/unpack.sh /tmp/p /tmp/site > /tmp/unpack.log 2>&1 || { tail -20 /tmp/unpack.log; exit 1; }
export PYTHONPATH=/tmp/site:$PWD
export XDG_CACHE_HOME=/tmp/cache
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
T=tests/device
run() { name=$1; shift; timeout "$1" python3 -m pytest -q -x --maxfail=25 -p no:cacheprovider "${@:2}" > "$OUT/$name.txt" 2>&1; echo "== $name rc=$?"; tail -40 "$OUT/$name.txt" | cut -c1-220; }
run like_stock 200 $T/test_like_stock.py &
run slices 200 $T/test_slices.py $T/test_mixed_dtypes.py $T/test_wrong_metadata.py &
run many 200 $T/test_many_outputs.py $T/test_outliers.py $T/test_library.py &
run dask_cudf 240 $T/test_dask_cudf.py $T/test_dask_cudf_shapes.py $T/test_direct.py $T/test_worker.py &
wait
