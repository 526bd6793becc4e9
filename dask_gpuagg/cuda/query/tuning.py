"""Numbers that host and device share, tuned by measurement on one H200.

Each public number is a constant of this name in ``constants.cuh``, which NVRTC gets beside the
files of ``kernels/``. Sizes that depend on a query are properties of ``Query``: its kernels have
them as template arguments.
"""

# ---- tables and keys -------------------------------------------------------------------------

# Slots behind every table, for the empty and the null key.
EXTRA_SLOTS = 2
# Key columns that may be coded together, and words of eight bytes that a string of them may have.
CODED_COLUMNS = 4
PIECES = 8
# Words of eight bytes that are hashed before the hash is mixed.
HASHED_WORDS = 8
# Key columns whose ranges a sample finds.
TOLD_COLUMNS = 8
# Outputs of one pass.
OUTPUTS_AT_MOST = 60

# ---- the sample ------------------------------------------------------------------------------

# Rows of a segment, which are side by side and one block's.
SEGMENT = 256
# Twice the rows of a full sample.
SAMPLE_SLOTS = 1 << 17
# Where a count's segments begin, above its rows.
SEGMENTS_FROM_BIT = 20
# Rows and segments of a key from which on it is hot, and how many hot keys the host gets.
HOT_ROWS = 8
HOT_SEGMENTS = 4
HOT_TOLD = 1024
# Numbers of a sample that are compared with those of another.
TOLD_NUMBERS = 12
# HyperLogLog: bits of the number of registers, and the parts of the keys that are counted apart.
REGISTERS_BITS = 13
COUNTED_PARTS = 4

# ---- threads of a block ----------------------------------------------------------------------

# Of kernels without a table in shared memory.
SMALL_BLOCK = 256
# Of one block that sums the counts of all tiles: a warp of warps.
SCAN_THREADS = 1024
# Of the count of all keys.
COUNT_KEYS_THREADS = 512
# Of kernels that number the rows' groups.
ENCODE_THREADS = 512

# ---- partitions ------------------------------------------------------------------------------

# Hot keys that a table beside the scatter's tile takes; the hottest have copies of their states.
HOT_AT_MOST = 384
HOT_COPIED = 16
# Of skewed keys one row in so many is counted by its partition, which gets room for as many
# deviations of the rows expected by the count, and for some rows more.
ROOM_OF = 16
ROOM_SIGMAS = 5
ROOM_MORE = 64
ROOM_THREADS = 1024
# Folding column by column: threads of a block, and keys that a thread has in flight.
FOLD_THREADS = 1024
FOLD_UNROLL = 4

# ---- sorting, numbering, text ----------------------------------------------------------------

DIGITS = 256
SORT_THREADS = 512
SORT_ITEMS = 12
# Blocks of an SM, which the registers must suffice for.
SORT_BLOCKS = 2
# Rows of a warp that looks for runs of equal keys.
RUN_ROWS = 2048
# Words of marks that a warp numbers.
MARK_TILE = 2048
# Groups whose strings a block lays out together, one a thread.
TEXT_TILE = 256

# ---- selection -------------------------------------------------------------------------------

# Sides of a bracket on which a word may lie, its two ends among them.
SIDES = 5
# Of the count: threads of a block, blocks of an SM, rows of a thread. Where the counts leave room
# for one block only, it has more threads.
COUNT_THREADS = 512
COUNT_BLOCKS = 3
ONE_BLOCK_THREADS = 1024
COUNT_ITEMS = 4
# Of the count of distinct words in parts.
PARTS_THREADS = 512
PARTS_BLOCKS = 3


def constants() -> str:
    """The text of ``constants.cuh``."""
    numbers = {name: value for name, value in globals().items() if name.isupper()}
    lines = (f"constexpr unsigned {name} = {value};\n" for name, value in numbers.items())
    return f"#pragma once\nnamespace gpuagg {{\n{''.join(lines)}}}\n"
