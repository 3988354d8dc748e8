"""What went wrong with Spark is told by the error itself, whatever else is going on around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from bayou.errors import SparkFailed, SparkLost
from bayou.pipeline.failure import spark_errors

ENDED = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.{status}
\tdetails = "{details}"
\tdebug_error_string = "long"
>"""


def ended(status: grpc.StatusCode, details: str) -> SparkConnectGrpcException:
    """Return what the client makes of a call that the server has not answered."""
    return SparkConnectGrpcException(ENDED.format(status=status.name, details=details), grpc_status_code=status)


@contextmanager
def session() -> Iterator[None]:
    with spark_errors(None):
        yield


def test_a_server_that_is_gone_is_named_also_by_who_handles_something_else():
    """Python then takes what is handled for the cause: the call that failed is not to be found any more."""

    class Call(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

    def lose() -> None:
        try:
            raise Call
        except Call:
            raise ended(grpc.StatusCode.UNAVAILABLE, "Connection refused") from None

    try:
        raise KeyError
    except KeyError:
        with pytest.raises(SparkLost), session():
            lose()


def test_a_call_that_ended_otherwise_says_how():
    with pytest.raises(SparkFailed) as caught, session():
        raise ended(grpc.StatusCode.RESOURCE_EXHAUSTED, 'a "huge" plan')

    assert caught.value.message == 'the job failed on Spark: RESOURCE_EXHAUSTED: a "huge" plan'
