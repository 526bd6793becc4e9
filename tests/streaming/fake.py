"""A device of a stream whose memory is the host's, and limited: the logic without a GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dask_gpuagg.engines.host import engine as host
from dask_gpuagg.plan import Plan
from dask_gpuagg.streaming.batches import TEXT, Batch, Sizes, image_of, restored, restored_text


class FakeDevice:
    """Groups by the host engine what has gone through images, and counts what is held.

    So many rows may be held, of batches and of tables, as the limit says.
    """

    def __init__(self, sizes: Sizes, limit: float = float("inf")) -> None:
        self._sizes = sizes
        self.limit = limit
        self.log: list[str] = []
        self.held = self.streams = 0

    def sizes(self) -> Sizes:
        self.streams += 1
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
                    # the first one's categories, as the device has codes only
                    dtype = (*part.keys, *part.columns)[c].dtype
                    array = restored(image.values, None, dtype)
                pieces.append(pd.Series(array))
            made.append(pd.concat(pieces, ignore_index=True))
        self.log.append(f"load {rows}")
        return made[: len(part.keys)], made[len(part.keys) :]

    def partial(self, columns: Any, plan: Plan, parts: int) -> list[Any]:
        keys, values = columns
        made = host.partial(keys, values, pd.RangeIndex(len(keys[0])), plan)
        self._take(len(made["groups"]), "groups")
        return [made] if parts == 1 else host.split(made, plan, parts)

    def divided(self, table: Any, plan: Plan, parts: int) -> list[Any]:
        self._take(2 * self.rows(table), "division")
        self.log.append(f"divide in {parts}")
        return host.split(table, plan, parts)

    def merged(self, tables: list[Any], plan: Plan) -> Any:
        self.log.append(f"merge {len(tables)}")
        self._take(sum(map(self.rows, tables)), "merge")
        dtypes = _key_dtypes(tables[0], plan)
        return host.combine([_decoded(table, dtypes) for table in tables], plan)

    def rows(self, table: Any) -> int:
        return len(table["groups"])

    def nbytes(self, table: Any) -> int:
        groups = table["groups"]
        columns = [groups[name] for name in groups.columns]
        return host.bytes_of(columns)

    def to_host(self, tables: list[Any], plan: Plan, like: Batch) -> Any:
        self.log.append("leave")
        alike = host.alike([table["groups"] for table in tables], plan)
        whole = pd.concat(alike, ignore_index=True)
        return _decoded({"groups": whole}, [key.dtype for key in like[0].part.keys])

    def to_host_in_parts(self, table: Any, plan: Plan, like: Batch, parts: int) -> list[Any]:
        self._take(2 * self.rows(table), "split")
        self.log.append(f"split in {parts}")
        whole = _decoded(table, [key.dtype for key in like[0].part.keys])
        return host.split(whole, plan, parts)

    def from_host(self, partials: list[Any], plan: Plan) -> Any:
        self._take(sum(map(self.rows, partials)), "part")
        dtypes = _key_dtypes(partials[0], plan)
        tables = [_decoded(each, dtypes)["groups"] for each in partials]
        assert all(list(table.columns) == list(tables[0].columns) for table in tables)
        return {"groups": pd.concat(tables, ignore_index=True)}

    def release(self) -> None:
        self.log.append("release")


def _key_dtypes(table: Any, plan: Plan) -> list[Any]:
    return [table["groups"][f"k{i}"].dtype for i in range(len(plan.keys))]


def _decoded(table: Any, dtypes: list[Any]) -> Any:
    """A table whose codes of categories are read by other dtypes: a device has no categories."""
    groups = table["groups"].copy(deep=False)
    for i, dtype in enumerate(dtypes):
        if isinstance(dtype, pd.CategoricalDtype):
            groups[f"k{i}"] = restored(groups[f"k{i}"].cat.codes.to_numpy(), None, dtype)
    return {"groups": groups}
