"""What goes from block to block where they are in different processes: point to point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils, transfer

from parscan_bp.pipeline.block_run import Post, What, Where
from parscan_bp.types import PyTree

_LONGEST = 128
"""Of an address, in bytes."""


class Wires:
    """A `Post` that reaches the blocks of other processes, by `jax.experimental.transfer`.

    Who makes a value offers it under a number that both know, and goes on; who needs it pulls it
    from that process and from no other. What has been offered and not been pulled is the queue, and
    lies where it was made. Addresses are exchanged once, by a collective; no other one is made.

    Args:
      mail: of the blocks of this process.
      owner: the process of each block.
      parts: of a batch.
      outputs: shapes and dtypes of the output of each block, for a part.
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
        outputs: Sequence[PyTree],
        params: Sequence[PyTree],
        host: str,
    ):
        self._mail, self._owner, self._parts = mail, owner, parts
        own = jax.eval_shape(lambda: list(params))
        self._like: dict[What, Sequence[PyTree]] = {
            "output": outputs,
            "cotangent": outputs,
            "gradient": [(each, each) for each in own],
            "updated": own,
        }
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
            self._server.await_pull(self._number(what, where), jax.tree.leaves(value))

    def take(self, what: What, where: Where) -> PyTree:
        maker = {"cotangent": where[0] + 1, "updated": 0}.get(what, where[0])
        local = what in ("labels", "loss") or not 0 <= maker < len(self._owner)
        if local or self._owner[maker] == jax.process_index():
            return self._mail.take(what, where)
        structure: Any
        leaves, structure = jax.tree.flatten(self._like[what][where[0]])
        here = jax.sharding.SingleDeviceSharding(self._device)
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here) for a in leaves]
        pulled = self._connections[self._owner[maker]].pull(self._number(what, where), specs)
        return jax.block_until_ready(structure.unflatten(pulled))

    def _number(self, what: What, where: Where) -> int:
        k, batch, part = where
        which = (batch * self._parts + part) * len(self._owner) + k
        return len(self._like) * which + list(self._like).index(what)
