"""The same question to this process and to all workers of the cluster that it is a client of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dask_gpuagg.cluster.places import patience
from dask_gpuagg.cluster.preflight import current_client

HERE = "this process"


class Gathered(NamedTuple):
    """Answers by the address of a worker, or ``HERE``, and why others are missing.

    Attributes
    ----------
    answers : dict of str to object
    missing : dict of str to str
    """

    answers: dict[str, Any]
    missing: dict[str, str]


def gather(ask: Callable[..., Any], *args: Any) -> Gathered:
    """Call a function of this package here and on every worker.

    Parameters
    ----------
    ask : callable
        Of a module, so that it pickles by name.
    *args
        Its arguments.

    Returns
    -------
    Gathered
        Of an asynchronous client, whose workers cannot be waited for, without the workers' answers.
    """
    answers: dict[str, Any] = {HERE: ask(*args)}
    missing: dict[str, str] = {}
    client = current_client()
    if client is None or client.status != "running":
        return Gathered(answers, missing)
    if client.asynchronous:
        reason = "the client is asynchronous, or the call was made on its event loop"
        return Gathered(answers, {"the workers": reason})
    try:
        found = client.run(ask, *args, on_error="return", callback_timeout=patience())
    except TimeoutError:
        return Gathered(answers, {"the workers": f"no answer within {patience():g} s"})
    for worker, answer in found.items():
        if isinstance(answer, BaseException):
            missing[worker] = repr(answer)
        else:
            answers[worker] = answer
    return Gathered(answers, missing)
