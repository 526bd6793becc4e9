"""Forms of the keys on the host: a class for each, and the narrowest that a sample admits."""

from dask_gpuagg.cuda.call import Call
from dask_gpuagg.cuda.keys.codes import coded
from dask_gpuagg.cuda.keys.ranges import ranged
from dask_gpuagg.cuda.keys.words import Keys

# Each looks at a sample of the rows of a call where the types of the keys admit its form.
_NARROWER = (ranged, coded)


def narrowest_keys(call: Call, slots: bool) -> Keys:
    """The keys of a call in a narrower form, or in their own if no other serves.

    ``slots`` is whether dense keys may be addressed directly. If not, there is nothing to gain by
    ranges that are hardly wider than the sample's.
    """
    return next((keys for form in _NARROWER if (keys := form(call, slots))), Keys(call.query))
