// What a row asks of a table, whatever its key is made of.
#pragma once

#include "core/types.cuh"

namespace gpuagg {

enum class Kind : u8 {
    key,    // look the word up
    empty,  // the key whose word is EMPTY: it has a slot of its own behind the table
    null,   // the null key: likewise
    drop,   // the row belongs to no group
};

struct Probe {
    u64 word;  // what the slot of this key holds; EMPTY unless the kind is key
    u32 home;  // 32 bits that choose where to look first
    Kind kind;
};

// Any number of slots without a division: the high half of home * slots.
GPUAGG_INLINE u32 first_slot(u32 home, u32 slots) { return __umulhi(home, slots); }

}  // namespace gpuagg
