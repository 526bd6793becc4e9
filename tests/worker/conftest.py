"""Fixtures of the tests on a cluster, which these use too."""

from tests.cluster.conftest import _enabled, client

__all__ = ["_enabled", "client"]
