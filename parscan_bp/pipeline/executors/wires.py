"""What goes from block to block where they are in different processes: point to point."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils, transfer

from parscan_bp.pipeline.block_run import Post, What, Where
from parscan_bp.types import PyTree

_LONGEST = 128
"""Of an address, in bytes."""


_SENT: tuple[What, ...] = ("output", "cotangent", "gradient", "updated")
"""What goes to other processes."""


class Outputs:
    """Shapes and dtypes of what each block makes of a part of a batch: told by one thread, as the
    batch enters, and waited for by others."""

    def __init__(self) -> None:
        self._told: dict[int, Sequence[PyTree]] = {}
        self._changed = threading.Condition()

    def tell(self, batch: int, outputs: Sequence[PyTree]) -> None:
        with self._changed:
            self._told[batch] = outputs
            self._changed.notify_all()

    def of(self, batch: int) -> Sequence[PyTree]:
        with self._changed:
            self._changed.wait_for(lambda: batch in self._told)
            return self._told[batch]


class Wires:
    """A `Post` that reaches the blocks of other processes, by `jax.experimental.transfer`.

    Who makes a value offers it under a number that both know, and goes on; who needs it pulls it
    from that process and from no other. What has been offered and not been pulled is the queue, and
    lies where it was made. Addresses are exchanged once, by a collective; no other one is made.

    Args:
      mail: of the blocks of this process.
      owner: the process of each block.
      parts: of a batch.
      outputs: of the blocks.
      params: of each block, or shapes and dtypes alike.
      host: the address of this machine to the others.

    Raises:
      NotImplementedError: if this JAX cannot transfer between processes here; says why.
    """

    def __init__(
        self,
        mail: Post,
        owner: Sequence[int],
        parts: int,
        outputs: Outputs,
        params: Sequence[PyTree],
        host: str,
    ):
        self._mail, self._owner, self._parts = mail, owner, parts
        self._outputs, self._params = outputs, jax.eval_shape(lambda: list(params))
        self._device = jax.local_devices()[0]
        try:
            self._server = transfer.start_transfer_server(
                self._device.client, f"{host}:0", [f"{host}:0"]
            )
        except Exception as error:
            raise NotImplementedError(
                f"blocks in different processes: jax.experimental.transfer of JAX "
                f"{jax.__version__} has no server on {self._device.platform}: {error}"
            ) from error
        here = self._server.address().encode().ljust(_LONGEST, b"\0")
        everyone = multihost_utils.process_allgather(np.frombuffer(here, np.uint8))
        self._addresses = [bytes(row).rstrip(b"\0").decode() for row in np.asarray(everyone)]
        self._connections: dict[int, Any] = {}
        for other in sorted(set(owner) - {jax.process_index()}):
            self._connections[other] = self._server.connect(self._addresses[other])

    def put(self, what: What, where: Where, value: PyTree) -> None:
        reader = {"output": where[0] + 1, "gradient": 0}.get(what, where[0])
        if what == "loss" or self._owner[reader] == jax.process_index():
            self._mail.put(what, where, value)
        else:
            leaves = [a for a in jax.tree.leaves(value) if _is_sent(what, a)]
            self._server.await_pull(self._number(what, where), leaves)

    def take(self, what: What, where: Where) -> PyTree:
        maker = {"cotangent": where[0] + 1, "updated": 0}.get(what, where[0])
        local = what in ("labels", "loss") or not 0 <= maker < len(self._owner)
        if local or self._owner[maker] == jax.process_index():
            return self._mail.take(what, where)
        structure: Any
        types, structure = jax.tree.flatten(self._like(what, where))
        here = jax.sharding.SingleDeviceSharding(self._device)
        sent = [a for a in types if _is_sent(what, a)]
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here) for a in sent]
        pulled = self._connections[self._owner[maker]].pull(self._number(what, where), specs)
        given = iter(jax.block_until_ready(pulled))
        leaves = [
            next(given) if _is_sent(what, a) else np.zeros(a.shape, jax.dtypes.float0)
            for a in types
        ]
        return structure.unflatten(leaves)

    def _like(self, what: What, where: Where) -> PyTree:
        """Shapes and dtypes of what comes from another process."""
        k, batch, _ = where
        if what in ("output", "cotangent"):
            return self._outputs.of(batch)[k]
        return (self._params[k], self._params[k]) if what == "gradient" else self._params[k]

    def _number(self, what: What, where: Where) -> int:
        k, batch, part = where
        which = (batch * self._parts + part) * len(self._owner) + k
        return len(_SENT) * which + _SENT.index(what)


def _is_sent(what: What, leaf: Any) -> bool:
    """Cotangents of integers have no numbers (float0)."""
    return what != "cotangent" or jnp.issubdtype(leaf.dtype, jnp.inexact)
