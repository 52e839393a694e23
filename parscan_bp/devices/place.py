"""Where the steps of a scan are run."""

from __future__ import annotations

from collections.abc import Callable

from jax.extend.core import Jaxpr

from parscan_bp.devices.exclusive import Traffic
from parscan_bp.devices.order import DeviceOrder
from parscan_bp.types import Array, PyTree

RunSteps = Callable[..., PyTree]
"""``(shared, init, xs) -> (carry, ys)`` of a number of steps; xs and ys have them in front."""


class Place:
    """Where a solver wants the steps of a scan, and the data to lie: all of them in one place.

    Another place, such as `OverMesh`, says of each method what is done there.
    """

    @property
    def has_all_steps(self) -> bool:
        """Whether a program has all steps of a scan where it calls it, and not a device's own."""
        return True

    def count(self, tree: PyTree) -> int | None:
        """Over how many devices steps are divided, or the layers of a chain; ``None`` for none.

        Args:
          tree: the arrays of the call.
        """
        return None

    @property
    def is_one(self) -> bool:
        """Whether it is one place, and no line of devices."""
        return self.line(reverse=False) is None

    def line(self, *, reverse: bool) -> DeviceOrder | None:
        """The devices, in the order of a scan; ``None`` where all steps are in one place.

        A parallel forward pass goes over them, too.
        """
        return None

    def obstacle(self, jaxpr: Jaxpr) -> str | None:
        """Why a step cannot be run there."""
        return None

    def traced_as(self, init: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
        """The first carry and the inputs as arrays of the types that they have for one device."""
        return init, xs

    def placed(self, loop: Callable[..., PyTree], *, reverse: bool) -> Callable[..., PyTree]:
        """The exact forward pass, run there.

        Args:
          loop: ``(consts, init, xs) -> (carry, ys, carry after every step)``, lists of arrays.
          reverse: whether it begins with the last step.

        Returns:
          A function of the same arguments and results; ``loop`` itself where any place is right.
        """
        return loop

    def entering(self, init: list[Array], after: list[Array], *, reverse: bool) -> list[Array]:
        """The carry that enters the first step that is here, linear in the two.

        Args:
          init: the first carry of the scan, or its tangents.
          after: the carry after every step that is here, or their tangents.
          reverse: whether the scan begins with the last step.

        Returns:
          ``init`` itself where all steps are in one place.
        """
        return init

    def spread(
        self,
        run: Callable[[int], RunSteps],
        rest: Callable[[int], RunSteps],
        length: int,
        *,
        reverse: bool,
    ) -> RunSteps:
        """The whole scan, derivatives included, wherever its steps are.

        Args:
          run: ``n`` -> the scan of n steps of one device, of which `placed` and `entering` are then
            asked.
          rest: the same of steps that are not divided.
          length: all steps.
          reverse: whether the scan begins with the last step.
        """
        return run(length)

    def on_each(self, f: Callable[..., PyTree], whole: PyTree, divided: PyTree) -> PyTree:
        """``f(which device, whole, its part of divided)`` on all devices, where it is the same."""
        raise NotImplementedError(f"{self!r} has no devices")

    def traffic(self, pair: int, vector: int, length: int) -> dict[str, Traffic]:
        """What a device takes part in between devices, by its purpose; nothing for one place.

        Args:
          pair: bytes of a Jacobian, or of a product of them, and a vector.
          vector: bytes of a carry.
          length: all steps.
        """
        return {}


HERE = Place()
"""All steps in one place."""
