"""Parts of a query's translation unit, and which kernels each of them holds."""

from __future__ import annotations

# Parts of the translation unit that are compiled on their own, when a call first needs one of their
# kernels: most calls need a fraction of what all of them cost. The core has all other kernels.
CORE = "core"
WHOLE_WORDS = ("scatter", "scatter_wide", "scatter_hot", "aggregate", "aggregate_crowded")
NARROW_WORDS = tuple(f"{kernel}_narrow" for kernel in WHOLE_WORDS)
# Keys of a narrow range by slots of their own.
SLOTS = ("scatter_striped", "scatter_wide_striped", "aggregate_striped")
PARTITIONED = (*WHOLE_WORDS, *NARROW_WORDS, *SLOTS)
FOLDS = ("fold", "fold_narrow", "fold_striped")
UNITS: dict[str, tuple[str, ...]] = {
    CORE: (),
    "transfer": ("clear_target", "transfer"),
    "sp_ega": ("first_place", "list_free", "next_place"),
    "hgb": ("hgb",),
    "hgb_runs": ("hgb_runs",),
    "direct_shared": ("direct_shared",),
    "direct_far": ("direct_far",),
    "direct_global": ("direct_global",),
    **{kernel: (kernel,) for kernel in (*PARTITIONED, *FOLDS)},
    "absorb": ("absorb", "append_others", "recount"),
    "room": ("count_partitions", "lay_out"),
    "count": ("count_keys",),
    "words": ("make_words",),
    "codes": ("make_codes", "measure_texts", "scan_texts", "write_texts", "write_integers"),
    "bytes": ("bytes",),
    "ranges": ("ranges",),
    "longest": ("longest",),
    "verify": ("index_groups", "verify"),
    "encode": ("entries", "encode"),
    "scan": ("scan_tiles",),
    "range": (
        *("find_range", "mark_keys", "count_marks"),
        *("number_marks", "encode_range", "write_range"),
    ),
    "runs": ("count_runs", "reduce_runs", "rank_rows"),
}
_UNIT_OF = {kernel: unit for unit, kernels in UNITS.items() for kernel in kernels}


def unit_of(kernel: str) -> str:
    """The unit that holds a kernel."""
    return _UNIT_OF.get(kernel, CORE)
