"""A device of a stream whose memory is the host's, and limited: the logic without a GPU."""

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
        return [made["groups"]] if parts == 1 else _split(made["groups"], plan, parts)

    def divided(self, table: Any, plan: Plan, parts: int) -> list[Any]:
        self._take(2 * len(table), "division")
        self.log.append(f"divide in {parts}")
        return _split(table, plan, parts)

    def merged(self, tables: list[Any], plan: Plan) -> Any:
        self.log.append(f"merge {len(tables)}")
        self._take(sum(map(len, tables)), "merge")
        dtypes = _key_dtypes(tables[0], plan)
        return host.combine([{"groups": _decoded(t, dtypes)} for t in tables], plan)["groups"]

    def nbytes(self, table: Any) -> int:
        return host.bytes_of([table[name] for name in table.columns])

    def to_host(self, tables: list[Any], plan: Plan, like: Batch) -> Any:
        self.log.append("leave")
        whole = pd.concat(host.alike(tables, plan), ignore_index=True)
        return _decoded(whole, [key.dtype for key in like[0].part.keys])

    def to_host_in_parts(self, table: Any, plan: Plan, like: Batch, parts: int) -> list[Any]:
        self._take(2 * len(table), "split")
        self.log.append(f"split in {parts}")
        return _split(_decoded(table, [key.dtype for key in like[0].part.keys]), plan, parts)

    def from_host(self, tables: list[Any], plan: Plan) -> Any:
        self._take(sum(map(len, tables)), "part")
        dtypes = _key_dtypes(tables[0], plan)
        assert all(list(table.columns) == list(tables[0].columns) for table in tables)
        return pd.concat([_decoded(table, dtypes) for table in tables], ignore_index=True)

    def release(self) -> None:
        self.log.append("release")


def _split(table: Any, plan: Plan, parts: int) -> list[Any]:
    return [part["groups"] for part in host.split({"groups": table}, plan, parts)]


def _key_dtypes(table: Any, plan: Plan) -> list[Any]:
    return [table[f"k{i}"].dtype for i in range(len(plan.keys))]


def _decoded(table: Any, dtypes: list[Any]) -> Any:
    """A table whose codes of categories are read by other dtypes: a device has no categories."""
    groups = table.copy(deep=False)
    for i, dtype in enumerate(dtypes):
        if isinstance(dtype, pd.CategoricalDtype):
            groups[f"k{i}"] = restored(groups[f"k{i}"].cat.codes.to_numpy(), None, dtype)
    return groups
