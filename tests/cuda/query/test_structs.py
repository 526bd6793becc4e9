"""The structs that host and device share: one table for both."""

import ctypes
import re

import pytest

from dask_gpuagg.cuda.query.instantiations import UNITS, TranslationUnit
from dask_gpuagg.cuda.query.structs import STRUCTS
from dask_gpuagg.cuda.runtime.compiler import compile_source, headers


def test_structs_have_one_layout() -> None:
    """A field that the two sides see at different places would be read from the wrong one."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")
    checks = []
    for name, struct in STRUCTS.items():
        size = ctypes.sizeof(struct)
        checks.append(f'static_assert(sizeof(gpuagg::{name}) == {size}, "{name}");')
        for field, *_ in struct._fields_:
            offset = getattr(struct, field).offset
            # the compiler's own offsetof: the oldest compiler that we admit knows no other constant
            address = f"(unsigned long long)__INTADDR__(&(((gpuagg::{name}*)0)->{field}))"
            checks.append(f'static_assert({address} == {offset}, "{name}.{field}");')
    files = {file for unit in UNITS.values() for file in unit.headers} | {"sgb/radix.cuh"}
    includes = [f'#include "{file}"' for file in sorted(files)]
    assert compile_source(TranslationUnit("\n".join([*includes, *checks]), {}), "sm_90").code


def test_no_file_of_kernels_has_a_struct_of_the_table() -> None:
    text = headers()["structs.cuh"].decode()
    assert re.findall(r"^struct (\w+) {", text, re.MULTILINE) == list(STRUCTS)
    assert "    u32 shared_slots;\n" in text
    for name, content in headers().items():
        if name != "structs.cuh":
            assert not set(re.findall(r"struct (\w+) {", content.decode())) & set(STRUCTS), name
