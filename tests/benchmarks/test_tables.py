"""The cells of benchmarks/tables.py, and the summary that is made of them."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from benchmarks.tables import members, summary


def test_members_have_names_of_their_own() -> None:
    names = Counter((m.family, m.name) for m in members())
    assert max(names.values()) == 1


def test_each_family_has_members_that_were_left_out_of_tuning() -> None:
    kinds = defaultdict(set)
    for member in members():
        kinds[member.family].add(member.tuned)
    assert all(found == {True, False} for found in kinds.values())


def test_the_grid_is_large_enough_to_speak_of_any_key() -> None:
    assert sum(len(m.queries) for m in members()) >= 140


def test_summary_tells_unseen_members_apart() -> None:
    cells = [
        {"family": "a", "query": "sum", "tuned": True, "ratio": 8.0},
        {"family": "a", "query": "sum", "tuned": False, "ratio": 2.0},
        {"family": "b", "query": "sum", "tuned": False, "ratio": 4.5},
    ]
    made = summary(cells)
    assert made["unseen"] == {"geometric_mean": pytest.approx(3.0), "least": 2.0}
    assert made["all"]["least"] == 2.0
    assert made["families"]["a: sum"] == {"geometric_mean": pytest.approx(4.0), "least": 2.0}
