"""Readers of Parquet, named by what identifies the files instead of all that was read of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask.tokenize import _tokenize_deterministic
from dask.utils import funcname

from dask_gpuagg.engines import dtypes_of, engine_name

# Operands that follow from the others and the files. Dask leaves the last operand out, which in
# this class is not the one with the dataset: its fragments, its partitions and its metadata, which
# may be cuDF's, are pickled for each projection.
_FOLLOWS = ("_dataset_info_cache", "_pq_length_stats")


def token(original: Callable[[Any], str], self: Any) -> str:
    """The token of a reader: of its operands, the checksum of the files, and the dtypes they have.

    Parameters
    ----------
    original : callable
        Dask's own.
    self : ReadParquetFSSpec
    """
    if self._determ_token:
        return str(self._determ_token)
    # finds the files, and so their metadata
    checksum = self.checksum
    meta = self._dataset_info["base_meta"]
    if engine_name(meta) is None:
        return original(self)
    named = zip(self._parameters, self.operands, strict=True)
    given = [operand for name, operand in named if name not in _FOLLOWS]
    dtypes = [(label, str(dtype)) for label, dtype in dtypes_of(meta)]
    self._determ_token = _tokenize_deterministic(funcname(type(self)), checksum, dtypes, *given)
    return str(self._determ_token)
