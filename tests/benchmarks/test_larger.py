"""The benchmark of rows beyond the device, without one: its data, its checks, its table."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from dask.tokenize import normalize_token, tokenize

from benchmarks import larger
from tests.running import ROOT


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> larger.Rows:
    monkeypatch.setattr(larger, "PARTITION_ROWS", 1 << 12)
    return larger.Rows(30_000, 500)


@pytest.mark.parametrize("passes", [1, 3])
def test_rows_are_as_many_as_passes_say(rows: larger.Rows, passes: int) -> None:
    collection = rows.collection(passes)
    assert collection.npartitions == 8 * passes
    made = larger.grouped(collection, "auto")
    assert len(made) == 500
    rows.check(made, passes)
    with pytest.raises(AssertionError):
        rows.check(made, passes + 1)


def test_rows_are_not_hashed_and_names_differ(rows: larger.Rows) -> None:
    before = tokenize(rows.frame)
    usual, hashed = normalize_token.dispatch(pd.DataFrame), []
    normalize_token.register(pd.DataFrame, lambda frame: hashed.append(len(frame)))
    try:
        first, second = rows.collection(), rows.collection()
    finally:
        normalize_token.register(pd.DataFrame, usual)
    assert not any(hashed)
    assert first._name != second._name
    assert tokenize(rows.frame) == before


@pytest.mark.parametrize("column", ["sum", "count"])
def test_a_wrong_group_is_found(rows: larger.Rows, column: str) -> None:
    made = larger.grouped(rows.collection(), "auto").sort_index()
    made.loc[2, column] += 1
    made.loc[400, column] -= 1
    with pytest.raises(AssertionError):
        rows.check(made)


def test_rows_of_which_some_keys_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    few = larger.Rows(20, 1_000_000)
    few.check(larger.grouped(few.collection(), "auto"))


def test_a_peer_that_takes_too_long_or_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not finished within 0.01 s" in larger.seconds_of_peer("host", 1_000, 10, 1, 0.01)
    monkeypatch.setattr(larger.importlib.util, "find_spec", lambda name: None)
    assert larger.seconds_of_peer("duckdb", 1_000, 10, 1, 0.01) == "not installed"


def test_the_stream_beside_its_peers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(mem_info=(0, 1 << 30))
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(larger, "streamed", lambda rows, repeats: {"seconds": [1.0, 0.5]})
    monkeypatch.setattr(
        larger, "seconds_of_peer", lambda name, *_: [2.0] if name == "host" else "no"
    )
    given = {"gigabytes": 0.0, "groups": [7, 9], "shares": [0.5], "repeats": 2}
    cells: list[dict[str, Any]] = []
    larger.run(Namespace(**given, peer_rows=100, peer_seconds=1.0), cells.append)
    assert [cell["peer_ratio"] for cell in cells] == [{"host": 4.0}] * 2
    assert cells[0]["peers"] == {"host": [2.0], "polars": "no", "duckdb": "no"}


def test_the_table_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    import result_tables

    cell: dict[str, Any] = {
        "groups": 10_000_000, "gigabytes": 17.2, "resource": "pool", "limit_bytes": None,
        "peak_bytes": 14e9, "gigabytes_a_second": 40.04, "share_of_link": 0.7412,
    }  # fmt: skip
    peers = {"peers": {"host": [2.0], "polars": "not installed"}, "peer_ratio": {"host": 2.04}}
    cells = [
        cell,
        cell | {"resource": "default", "peak_bytes": None},
        cell | {"limit_bytes": 2.15e9},
        cell | peers,
    ]
    lines = result_tables.larger(json.dumps({"link": 54e9, "cells": cells})).splitlines()
    assert lines[0] == "The link takes 54.0 GB/s from pinned memory."
    assert "| 10,000,000 | 17.2 | a pool | 40.0 | 74% | 14.0 |" in lines
    assert "| 10,000,000 | 17.2 | RMM's default | 40.0 | 74% |  |" in lines
    assert "| 10,000,000 | 17.2 | a pool of 2.1 GB | 40.0 | 74% | 14.0 |" in lines
    assert lines[-1] == "| 10,000,000 | 17.2 | 40.0 | 2.0 | not installed |"
