"""All arithmetic on known values inside of the loop, where that is one function.

XLA runs the operations of a loop one after the other, and had better find in it the fewest. A loop
that is one function does arithmetic in registers, on what it reads for the step anyway; it waits
for memory. So it reads the fewest bytes from which the known values follow, see `Cut`, and stores
all that a pullback is made from, which would else be made again of all vectors.
"""

from __future__ import annotations

import dataclasses

import jax

from parscan_bp.jaxprs.replay import evaluate
from parscan_bp.linearise.linear_step import LinearStep


def arithmetic_inside(step: LinearStep) -> LinearStep:
    """The same map, that reads what `Cut` keeps and inputs of the step, and makes the rest."""
    known, cut = step.known, step.cut
    count = len(cut.second.in_avals)

    def make(*values):
        shared = evaluate(known.unvarying, values)
        return [*(values[k] for k in cut.read), *cut.make(values), *shared]

    def run(k, v):
        whole = known.in_order(evaluate(cut.second, k[:count]), k[count:])
        return evaluate(step.apply, [*whole, *v])

    closed = jax.make_jaxpr(make)(*known.jaxpr.in_avals)
    tree = jax.tree.structure(closed.out_avals)
    read = dataclasses.replace(known, jaxpr=closed, tree=tree)
    return dataclasses.replace(step.rewritten(run, known=read), one_function=True)
