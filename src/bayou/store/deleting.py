"""Delete a batch of objects, and find out which of them are still there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bayou.core.errors import DeleteFailed, StoreError
from bayou.store.sender import Sender
from bayou.store.threads import aside
from bayou.store.transport import Transport


def delete_batch(transport: Transport, sender: Sender, batch: Sequence[str]) -> dict[str, StoreError]:
    """Delete objects by their whole keys, in one request if that works; return why some could not be."""
    deadline = sender.bound()
    left, attempt = batch, 1
    while True:
        timeout = sender.timeout(deadline)
        sender.meter.sent("delete")
        try:
            aside(partial(transport.delete, left, timeout=timeout))
            return {}
        except StoreError as error:
            failed = error.failed if isinstance(error, DeleteFailed) else dict.fromkeys(left, error)
            left = [key for key in left if key in failed]
            final = any(not cause.retryable for cause in failed.values())
            if final and len(left) > 1:
                # Of a batch, stores tell one failure at most (Azure: one key that is not there); ask one by one.
                return {key: cause for one in left for key, cause in delete_batch(transport, sender, [one]).items()}
            if not sender.policy.again(failed[left[0]], attempt, contacted=True):
                return failed
        deadline.sleep(sender.policy.pause(attempt))
        attempt += 1
