"""Local clusters, and their workers as the scheduler knows them now."""

import contextlib
from collections.abc import Iterator
from typing import Any

from distributed import Client, LocalCluster


@contextlib.contextmanager
def cluster_of(
    workers: int, dashboard_address: str | None = None, **options: Any
) -> Iterator[Client]:
    """A client of a cluster whose workers have a thread each."""
    options |= {"threads_per_worker": 1, "dashboard_address": dashboard_address}
    with LocalCluster(n_workers=workers, **options) as cluster, Client(cluster) as client:
        yield client


def workers_of(client: Client) -> dict[str, Any]:
    """What a scheduler says of its workers, by address.

    ``Client.scheduler_info`` reads what a periodic callback may have replaced by no workers.
    """
    identities: dict[str, Any] = client.run_on_scheduler(
        lambda dask_scheduler: {
            address: worker.identity() for address, worker in dask_scheduler.workers.items()
        }
    )
    return identities
