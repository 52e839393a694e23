"""What `diagnose` returns: plain numbers and text."""

from __future__ import annotations

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a step, and where it was written; ``str()`` is a few words.

    Attributes:
      primitive: its name in JAX; for a call with a derivative of its own, with what is called.
      file, line, function: of the user's program; ``None`` where JAX does not know.
      inner: inside of loops of the step, the step of each, from outside to inside: an index into
        its xs, or a count of a `while`.
      hidden: the operation's own value is infinite or NaN, too, but no result of the step: as in
        the branch that a ``where`` does not take.
    """

    primitive: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    inner: tuple[int, ...] = ()
    hidden: bool = False

    def __str__(self):
        where = "" if self.file is None else f" at {self.file}:{self.line}, in {self.function}"
        loops = "".join(f", step {t} of a loop inside" for t in self.inner)
        return f"{self.primitive}{where}{loops}"


@dataclasses.dataclass(frozen=True)
class Fault:
    """The first place of one kind where something is not finite, or too large.

    Attributes:
      quantity: "carry" or "output" for values; "Jacobian" for a tangent that was pushed through
        one step; "cotangent" for what the step hands back; "loss".
      step: its index into xs; ``None`` for init, for the loss, and for its own derivative.
      leaf: by its path: "carry['h']", "ys[0]", "xs", or a constant of the step.
      what: "NaN", "infinite", or "beyond the threshold".
      entry: of that leaf, the index of the first entry that is so bad; empty for scalars.
      operation: the first whose operands are better than its result; for derivatives, the one whose
        slope is not finite. ``None`` where the number came in, or none was found.
      came_by: the input of the step that had it already; ``None`` if an operation made it.
    """

    quantity: str
    step: int | None
    leaf: str
    what: str
    entry: tuple[int, ...] = ()
    operation: Operation | None = None
    came_by: str | None = None

    def __str__(self):
        given = "in init" if self.quantity == "carry" else "as the backward pass begins"
        where = given if self.step is None else f"at step {self.step}"
        of = {"cotangent": "the cotangent of ", "Jacobian": "the Jacobian of "}
        entry = f", at entry {list(self.entry)}" if self.entry else ""
        text = f"{where}, {of.get(self.quantity, '')}{self.leaf} is {self.what}{entry}"
        if self.operation is not None:
            text += f": by {self.operation}"
            if self.operation.hidden:
                text += (
                    "; its own value is not finite, though no result of the step shows it, as in "
                    "the branch that `where` does not take: give it an operand that is safe there"
                )
            elif self.quantity in of:
                text += "; its value is finite"
        elif self.came_by is not None:
            text += f": it came in by {self.came_by}"
        return text


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnosis:
    """What happened in a scan and its backward pass; ``str()`` is a short text.

    Attributes:
      faults: the first of each kind: of values as they run; of the Jacobian, likewise; of
        cotangents, from the last step back. Empty if all is finite and below the threshold.
      length, reverse: of the scan. Steps are told by their index into xs; with ``reverse=True`` the
        last of xs runs first.
      norms: of the cotangent of the carry, Euclidean, over all float leaves, shape (length + 1,),
        in the order of running: ``norms[k]`` after k steps, so ``norms[0]`` is that of init and
        ``norms[-1]`` what the loss gave for the last carry. NaN where there is none.
      growth: the factor by which each step changes the largest entry of a tangent that all steps
        before have turned, shape (length,), in the order of running.
      exponent: the largest Lyapunov exponent, per step: the mean of log(growth) over the second
        half of the steps; ``None`` without a tangent, NaN where it is not finite.
      memory: after how many steps backwards a cotangent of the last carry, pseudo-random and
        without those of outputs, has less than ``fraction`` of its norm: an int, or infinity if it
        never has; ``None`` if that is not known.
      fraction, threshold: as given.
      remarks: what could not be looked at, and why.
    """

    faults: tuple[Fault, ...]
    length: int
    reverse: bool
    norms: np.ndarray
    growth: np.ndarray
    exponent: float | None
    memory: float | None
    fraction: float
    threshold: float | None
    remarks: tuple[str, ...] = ()

    @property
    def first(self) -> Fault | None:
        """The first fault, that of values before those of derivatives; ``None`` without one."""
        return self.faults[0] if self.faults else None

    def __str__(self):
        order = ", the last of xs first" if self.reverse else ""
        head = f"{_steps(self.length)}{order}: "
        if self.faults:
            count = len(self.faults)
            lines = [f"{head}{'a fault' if count == 1 else f'{count} faults'}"]
            lines += [f"- {fault}" for fault in self.faults]
        else:
            below = "" if self.threshold is None else f" and at most {self.threshold:g}"
            parts = ("values", "Jacobians", "cotangents")
            seen = [part for part in parts if not any(r.startswith(part) for r in self.remarks)]
            lines = [f"{head}all finite{below}: {', '.join(seen)}"]
        if self.length and np.nansum(self.norms) > 0:
            lines.append(
                f"cotangents of the carry: norm {self.norms[-1]:.3g} at last, "
                f"{self.norms[0]:.3g} at init, at most {np.nanmax(self.norms):.3g}"
            )
        if self.exponent is not None and not math.isnan(self.exponent):
            lines.append(
                f"largest Lyapunov exponent: {self.exponent:.3g} per step, a small difference "
                f"becomes {math.exp(self.exponent):.3g} times as large"
            )
        if self.memory is not None and self.length:
            if self.memory == math.inf:
                text = f"keeps {self.fraction:g} of its norm, and more, back to init"
            else:
                text = f"has less than {self.fraction:g} of its norm after {_steps(self.memory)}"
            lines.append(f"memory: a cotangent {text}")
        return "\n".join([*lines, *self.remarks])


def _steps(count: float) -> str:
    return f"{count} step{'s' * (count != 1)}"
