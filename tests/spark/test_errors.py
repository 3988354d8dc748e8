"""What went wrong with Spark is told by the error itself, whatever else is going on around it."""

from __future__ import annotations

import grpc
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from bayou.core.errors import SparkFailed, SparkLost
from bayou.spark.session import spark_errors

ENDED = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.{status}
\tdetails = "{details}"
\tdebug_error_string = "long"
>"""


def ended(status: grpc.StatusCode, details: str) -> SparkConnectGrpcException:
    """Return what the client makes of a call that the server has not answered."""
    return SparkConnectGrpcException(ENDED.format(status=status.name, details=details), grpc_status_code=status)


def test_a_server_that_is_gone_is_named_also_by_who_handles_something_else():
    """As discovery on Spark does, since a small one was too much. The call itself is then not to be found any more."""
    try:
        raise KeyError
    except KeyError:
        with pytest.raises(SparkLost), spark_errors(None):
            raise ended(grpc.StatusCode.UNAVAILABLE, "Connection refused") from None


def test_a_call_that_ended_otherwise_says_how():
    with pytest.raises(SparkFailed) as caught, spark_errors(None):
        raise ended(grpc.StatusCode.RESOURCE_EXHAUSTED, 'a "huge" plan')

    assert caught.value.message == 'the job failed on Spark: RESOURCE_EXHAUSTED: a "huge" plan'
