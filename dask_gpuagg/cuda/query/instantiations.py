"""Translation units that NVRTC compiles: headers, and name expressions to instantiate."""

from collections.abc import Sequence
from typing import NamedTuple

from dask_gpuagg.cuda.query.types import SORTED_TYPES, TYPE_BYTES


class TranslationUnit(NamedTuple):
    """CUDA C++ that is compiled together.

    ``kernels`` has the name expression of each kernel, by the name that the host launches it by.
    """

    source: str
    kernels: dict[str, str]


class Instances:
    """A part of a query's kernels that is compiled on its own: files of ``kernels/`` and kernels.

    The name expressions are in the namespace ``gpuagg``. ``Asked`` is the query, ``Made`` its
    outputs, ``Kept`` its states; numbers in braces are the query's.
    """

    def __init__(self, *headers: str, **kernels: str) -> None:
        self.headers, self.kernels = headers, kernels


# Each unit is compiled when a call first needs one of its kernels; the core is for every call.
CORE = "core"
WHOLE_WORDS = ("scatter", "scatter_wide", "scatter_hot", "aggregate", "aggregate_crowded")
NARROW_WORDS = tuple(f"{kernel}_narrow" for kernel in WHOLE_WORDS)
# Each key of a narrow range has a slot.
SLOTS = ("scatter_striped", "scatter_wide_striped", "aggregate_striped")
PARTITIONED = (*WHOLE_WORDS, *NARROW_WORDS, *SLOTS)
FOLDS = ("fold", "fold_narrow", "fold_striped")
# Of keys whose words are their own bits, and of words that are numbers.
OF_PACKED_KEYS = ("scan", "range", "runs")
OF_NUMBERED_KEYS = (
    *(*NARROW_WORDS, "fold_narrow", "direct_shared", "direct_global"),
    *(*SLOTS, "fold_striped"),
)
# How partitions hold the keys, by the ends of the kernels' names, and the templates of these.
_WORDS = {"": "WholeWords", "_narrow": "NarrowWords", "_striped": "Striped"}
_SCATTERED = "<Asked, {scatter_threads}, {items}, WORDS>"
_GROUPED = "WORDS, {threads}, {unroll}>"
_OF_PARTITIONS = {
    "scatter": f"scatter{_SCATTERED}",
    "scatter_wide": f"scatter{_SCATTERED}".replace("items", "wide_items"),
    "scatter_hot": f"scatter_hot{_SCATTERED}",
    "aggregate": f"aggregate<Asked, Made, {{keys}}, NoCrowds, {_GROUPED}",
    "aggregate_crowded": f"aggregate<Asked, Made, {{keys}}, Crowds<Kept, {{crowds}}>, {_GROUPED}",
    "fold": "fold<Asked, Made, {keys}, WORDS, FOLD_UNROLL>",
}


def _partitioned(kernel: str) -> Instances:
    if kernel == "aggregate_striped":
        expression = "aggregate_striped<Asked, Made, {keys}, {threads}, {unroll}>"
        return Instances("pgb_tr/striped.cuh", aggregate_striped=expression)
    name = kernel.removesuffix("_narrow").removesuffix("_striped")
    expression = _OF_PARTITIONS[name].replace("WORDS", _WORDS[kernel.removeprefix(name)])
    return Instances(f"pgb_tr/{name.partition('_')[0]}.cuh", **{kernel: expression})


UNITS: dict[str, Instances] = {
    CORE: Instances(
        "lphga/lphga.cuh",
        "output/output.cuh",
        clear="clear<Asked>",
        collect="collect<Asked, Made>",
        write="write<Asked, Made, {keys}>",
    ),
    "lphga": Instances("lphga/lphga.cuh", lphga="lphga<Asked, {threads}, {unroll}>"),
    "sample": Instances(
        "estimate/sample.cuh",
        "estimate/summarise.cuh",
        "estimate/check.cuh",
        sample="sample<Asked>",
        summarise="summarise",
        check="check",
        check_hot="check_hot",
    ),
    "transfer": Instances(
        "lphga/lphga.cuh", clear_target="clear_target<Asked>", transfer="transfer<Asked>"
    ),
    "sp_ega": Instances(
        "sp_ega/sp_ega.cuh",
        first_place="first_place<Asked, {threads}, {unroll}>",
        mark_free="mark_free",
        next_place="next_place<Asked, false, {threads}, {unroll}>",
        next_place_last="next_place<Asked, true, {threads}, {unroll}>",
    ),
    "hgb": Instances("hgb/hgb.cuh", hgb="hgb<Asked, InTable, {threads}, {unroll}>"),
    "hgb_runs": Instances("hgb/hgb.cuh", hgb_runs="hgb<Asked, InRegisters, {threads}, {unroll}>"),
    "direct_shared": Instances(
        "direct/direct.cuh", direct_shared="direct<Asked, Shared, {threads}, {unroll}>"
    ),
    "direct_global": Instances(
        "direct/direct.cuh",
        "direct/name_slots.cuh",
        direct_global="direct<Asked, Global, {threads}, {unroll}>",
        name_slots="name_slots",
    ),
    **{kernel: _partitioned(kernel) for kernel in (*PARTITIONED, *FOLDS)},
    "absorb": Instances(
        "pgb_tr/absorb.cuh",
        absorb="absorb<Asked>",
        append_others="append_others<Asked, Made, {keys}>",
        recount="recount<Asked, Made>",
    ),
    "room": Instances(
        "pgb_tr/room.cuh",
        count_partitions="count_partitions<Asked>",
        lay_out="lay_out<ROOM_THREADS>",
    ),
    "count": Instances("estimate/count.cuh", count_keys="count_keys<Asked>"),
    "words": Instances("key/make_words.cuh", make_words="make_words<Asked, Factors>"),
    "codes": Instances(
        "key/make_words.cuh",
        "output/coded.cuh",
        "sgb/scan.cuh",
        make_codes="make_words<Asked, Codes>",
        measure_texts="measure_texts",
        scan_texts="scan_tiles<u64>",
        write_texts="write_texts",
        write_integers="write_integers",
    ),
    "bytes": Instances("estimate/bytes.cuh", bytes="bytes<Asked>"),
    "ranges": Instances("estimate/ranges.cuh", ranges="ranges<Asked>"),
    "encode": Instances("sgb/encode.cuh", entries="make_entries", encode="encode<Asked, {unroll}>"),
    "scan": Instances("sgb/scan.cuh", scan_tiles="scan_tiles<u32>"),
    "range": Instances(
        "sgb/range.cuh",
        find_range="find_range<Asked>",
        mark_keys="mark_keys<Asked>",
        count_marks="count_marks",
        number_marks="number_marks",
        encode_range="encode_range<Asked>",
        write_range="write_range<Asked, Made, {keys}>",
    ),
    "runs": Instances(
        "sgb/runs.cuh",
        count_runs="count_runs<Asked, {unroll}>",
        reduce_runs="reduce_runs<Asked, {unroll}>",
    ),
}
_UNIT_OF = {kernel: unit for unit, part in UNITS.items() for kernel in part.kernels}


def unit_of(kernel: str) -> str:
    """The unit that holds a kernel."""
    return _UNIT_OF.get(kernel, CORE)


# Of few rows, which go to one table at once; of rows that are sampled first, whose keys turn out to
# be few; and of many keys. The last are guesses: which of them a call launches, its sample says.
_OF_FEW_ROWS = (CORE, "lphga", "words")
_OF_FEW_KEYS = (
    *(CORE, "sample", "words", "bytes", "ranges", "codes"),
    *("hgb", "direct_shared", "count", "lphga"),
)
_OF_MANY_KEYS = (
    *("scatter", "aggregate", "scatter_narrow", "aggregate_narrow"),
    *("scatter_striped", "aggregate_striped", "fold", "fold_narrow", "direct_global", "absorb"),
)


def first_units(units: Sequence[str], sampled: bool, many_keys: bool = False) -> tuple[str, ...]:
    """Units that a query is likely to need at its first call, the surest first.

    ``sampled`` is whether the call has so many rows that it samples them; ``many_keys`` asks for
    the kernels that scatter rows first, too.
    """
    likely: tuple[str, ...] = _OF_FEW_KEYS if sampled else _OF_FEW_ROWS
    if many_keys:
        likely += _OF_MANY_KEYS
    return tuple(unit for unit in likely if unit in units)


def _unit(headers: Sequence[str], kernels: dict[str, str]) -> TranslationUnit:
    includes = "".join(f'#include "{header}"\n' for header in headers)
    return TranslationUnit(f"{includes}using namespace gpuagg;\n", kernels)


def sorting() -> TranslationUnit:
    """The kernels that sort, by the bytes of words or by value types; they serve all queries."""
    words = {4: "u32", 8: "u64"}
    kernels = {
        "scan_digits": "scan_digits",
        "numbers": "make_numbers",
        "mark_starts": "mark_starts",
        "fill_starts": "fill_starts",
        "ticks": "quantiles<i64, Ticks>",
    }
    for size, word in words.items():
        kernels[f"count_digits_{size}"] = f"count_digits<{word}>"
        kernels[f"count_distinct_{size}"] = f"count_distinct<{word}>"
        for moved, moved_word in words.items():
            kernels[f"pass_{size}_{moved}"] = f"sort_pass<{word}, {moved_word}>"
    for ctype in SORTED_TYPES:
        kernels[f"words_{ctype}"] = f"make_words<{ctype}>"
        kernels[f"quantiles_{ctype}"] = f"quantiles<{ctype}, Numbers>"
    return _unit(("sgb/radix.cuh", "sgb/segments.cuh"), kernels)


def deriving(columns: str) -> TranslationUnit:
    """The kernel that computes columns; ``columns`` is the text of the struct ``Columns``."""
    unit = _unit(("derive/derive.cuh",), {"derive": "derive<Columns>"})
    return unit._replace(source=f"{unit.source}\nnamespace gpuagg {{\n{columns}\n}}\n")


def selecting(ctype: str, ticks: bool = False) -> TranslationUnit:
    """The kernels that select values of one type; see ``algorithms/select.py``.

    Quantiles are in float64, or ticks of the values' type, as of datetimes.
    """
    word = "u64" if TYPE_BYTES[ctype] == 8 else "u32"
    between = "Ticks" if ticks else "Numbers"
    several = "COUNT_THREADS, COUNT_BLOCKS, COUNT_ITEMS"
    single = "ONE_BLOCK_THREADS, 1, COUNT_ITEMS"
    kernels = {
        "count_in_blocks": f"count_in_blocks<{ctype}, {several}>",
        "count_in_one_block": f"count_in_blocks<{ctype}, {single}>",
        "count_in_memory": f"count_in_memory<{ctype}, {several}>",
        "quantiles_found": f"quantiles_found<{ctype}, {between}>",
        "scan_groups": "scan_tiles<u32>",
    }
    plain = ("count_sampled", "divide_groups", "find_widest", "sum_parts")
    of_words = ("aim", "narrow", "pick", "read_ranks", "count_parts")
    kernels |= {name: name for name in plain} | {name: f"{name}<{word}>" for name in of_words}
    kernels |= {name: f"{name}<{ctype}>" for name in ("sample_rows", "find_parts")}
    return _unit(("select/distinct.cuh", "select/pick.cuh", "sgb/scan.cuh"), kernels)
