"""A device of a stream whose memory is the host's, and limited: the logic without a GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dask_gpuagg.engines.host import engine as host
from dask_gpuagg.plan import Plan
from dask_gpuagg.streaming.batches import Batch, Sizes
from dask_gpuagg.streaming.columns import TEXT, image_of, restored, restored_text


class FakeDevice:
    """Groups by the host engine what has gone through images, and counts what is held.

    Parameters
    ----------
    sizes : Sizes
    limit : int, optional
        Rows that may be held, of batches and of tables.
    """

    def __init__(self, sizes: Sizes, limit: float = float("inf")) -> None:
        self._sizes = sizes
        self.limit = limit
        self.log: list[str] = []
        self.held = 0

    def sizes(self) -> Sizes:
        return self._sizes

    def begin(self) -> None:
        self.log.append("begin")

    def _take(self, rows: int, what: str) -> None:
        if rows > self.limit:
            self.log.append(f"no memory for {what} of {rows}")
            raise MemoryError(f"{rows} rows")

    def load(self, batch: Batch) -> Any:
        rows = sum(map(len, batch))
        self._take(rows, "batch")
        part = batch[0].part
        made = []
        for c in range(len(part.keys) + len(part.columns)):
            pieces = []
            for each in batch:
                column = (*each.part.keys, *each.part.columns)[c]
                image = image_of(column).rows(each.start, each.stop)
                if image.kind == TEXT:
                    array = restored_text(image.values.combine_chunks(), column.dtype)
                else:
                    array = restored(image.values, None, column.dtype)
                pieces.append(pd.Series(array))
            made.append(pd.concat(pieces, ignore_index=True))
        self.log.append(f"load {rows}")
        return made[: len(part.keys)], made[len(part.keys) :]

    def partial(self, columns: Any, plan: Plan) -> Any:
        keys, values = columns
        made = host.partial(keys, values, pd.RangeIndex(len(keys[0])), plan)
        self._take(len(made["groups"]), "groups")
        return made

    def merged(self, tables: list[Any], plan: Plan) -> Any:
        self.log.append(f"merge {len(tables)}")
        self._take(sum(map(self.rows, tables)), "merge")
        return host.combine(tables, plan)

    def rows(self, table: Any) -> int:
        return len(table["groups"])

    def nbytes(self, table: Any) -> int:
        groups = table["groups"]
        columns = [groups[name] for name in groups.columns]
        return host.bytes_of(columns)

    def to_host(self, table: Any, plan: Plan, like: Batch) -> Any:
        self.log.append("leave")
        return table

    def to_host_in_parts(self, table: Any, plan: Plan, like: Batch, parts: int) -> list[Any]:
        self._take(2 * self.rows(table), "split")
        self.log.append(f"split in {parts}")
        return host.split(table, plan, parts)

    def from_host(self, partials: list[Any], plan: Plan) -> Any:
        self._take(sum(map(self.rows, partials)), "part")
        return {"groups": pd.concat([each["groups"] for each in partials], ignore_index=True)}

    def release(self) -> None:
        self.log.append("release")
