"""The workers of a cluster, as its scheduler knows them now."""

from typing import Any

from distributed import Client


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
