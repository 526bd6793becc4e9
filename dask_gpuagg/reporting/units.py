"""Bytes, seconds and rates as text, in units that suit them."""

from __future__ import annotations


def size_text(nbytes: float) -> str:
    """Bytes in a unit that suits them: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:,.0f} B" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def time_text(seconds: float) -> str:
    """Seconds in a unit that suits them: ``12.5 ms``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.0f} µs"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def rate_text(per_second: float) -> str:
    """Rows a second: ``12.5 M``."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_second >= factor:
            return f"{per_second / factor:,.1f}{unit}"
    return f"{per_second:,.0f}"
