"""The mutants: one wrong line each, one or two of them in a room of the package.

Each changes a number that users get, or a claim that they rely on, so that some test has to fail.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    """What a file of the package has once, and what is to stand there.

    Attributes:
      name: what is wrong with it.
      file: of the package, by its path there.
      old: text that is there once.
      new: text in its place.
    """

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "adapters-reset-of-the-step-before",
        "adapters/masking.py",
        "entered = jnp.concatenate([following, none], axis=axis)",
        "entered = jnp.concatenate([none, following], axis=axis)",
    ),
    Mutant(
        "cells-lstm-forgets-the-new-cell",
        "cells/lstm.py",
        "e = lambda_c + through_tanh(lambda_h * o, t)",
        "e = lambda_c + lambda_h * o",
    ),
    Mutant(
        "cells-gated-drops-the-way-past-the-weights",
        "cells/gated.py",
        "leaves[0] = by_state + leaves[0] if 0 in leaves else by_state",
        "leaves[0] = by_state",
    ),
    Mutant(
        "chain-parameters-of-the-layer-below",
        "chain/augmented.py",
        "at = params[k], xs[k], xs[k + 1], lambdas[k + 1]",
        "at = params[k], xs[k + 1], xs[k + 1], lambdas[k + 1]",
    ),
    Mutant(
        "chain-cotangents-of-parameters-are-not-added",
        "chain/augmented.py",
        "own = [a + leaves[j] for a, j in zip(own, self.active.leaves[k], strict=True)]",
        "own = [leaves[j] for a, j in zip(own, self.active.leaves[k], strict=True)]",
    ),
    Mutant(
        "choice-rows-of-a-product",
        "choice/work.py",
        "(rows,) = (each[k] for k in (0, 1) if ins[k])",
        "(rows,) = (each[1 - k] for k in (0, 1) if ins[k])",
    ),
    Mutant(
        "deep-rnn-state-in-place-of-output",
        "deep_rnn.py",
        'blocks.append(_chained(slopes[j]["hx"], between[i, j], slopes[i]["yh"]))',
        'blocks.append(_chained(slopes[j]["hx"], between[i, j], slopes[i]["hh"]))',
    ),
    Mutant(
        "devices-chain-in-doubling-is-turned-round",
        "devices/exclusive.py",
        "before = arrived if before is None else _where(whole, before, _pair(arrived, before))",
        "before = arrived if before is None else _where(whole, before, _pair(before, arrived))",
    ),
    Mutant(
        "devices-turns-are-one-too-few",
        "devices/in_turn.py",
        "lax.fori_loop(0, line.size - 1, step, start)",
        "lax.fori_loop(0, line.size - 2, step, start)",
    ),
    Mutant(
        "forward-radius-of-a-product",
        "forward/smooth_rules.py",
        "radius = added(times(q, a.radius), times(p, b.radius), both, rounding)",
        "radius = added(times(q, a.radius), both, rounding)",
    ),
    Mutant(
        "forward-seams-of-chunks",
        "forward/chunks.py",
        "jnp.concatenate([jnp.expand_dims(first, 0), a[-1, :-1]])",
        "jnp.concatenate([jnp.expand_dims(first, 0), a[0, :-1]])",
    ),
    Mutant(
        "grids-rows-from-the-wrong-end",
        "parallel/grids/halo.py",
        "start = block - rows if distance > 0 else 0",
        "start = 0 if distance > 0 else block - rows",
    ),
    Mutant(
        "grids-variance-of-one-part",
        "parallel/grids/layers/batch_norm.py",
        "count = x.shape[0] * self.layout.data.parts * math.prod(self.spatial)",
        "count = x.shape[0] * math.prod(self.spatial)",
    ),
    Mutant(
        "jaxprs-every-callback-takes-a-batch",
        "jaxprs/batching.py",
        "return None if one_by_one else name",
        "return None",
    ),
    Mutant(
        "jaxprs-equal-outputs-of-the-first-kind",
        "jaxprs/dependence.py",
        "carry.index(y) if isinstance(y, Var) and y in carry else None for y in outs[num_carry:]",
        "0 if isinstance(y, Var) and y in carry else None for y in outs[num_carry:]",
    ),
    Mutant(
        "kernels-columns-of-lanes",
        "kernels/column_reduce.py",
        "total[to * size + j] += read(ref, to, r, j) * entering[r]",
        "total[to * size + j] += read(ref, r, to, j) * entering[r]",
    ),
    Mutant(
        "kernels-reference-adds-no-vector",
        "kernels/reference.py",
        "x = _apply(a, x) + b\n",
        "x = _apply(a, x + b)\n",
    ),
    Mutant(
        "layers-mean-of-a-norm",
        "layers/normalisation.py",
        '"mean": -total * self._factor(params),',
        '"mean": total * self._factor(params),',
    ),
    Mutant(
        "layers-last-of-equal-entries",
        "layers/pooling.py",
        "take = inside & ((source < 0) | ~(best >= value))",
        "take = inside & ((source < 0) | (best <= value))",
    ),
    Mutant(
        "linearise-columns-of-a-row-product",
        "linearise/passes/row_product.py",
        "columns = jnp.expand_dims(jnp.moveaxis(rows, axis, -1), -1)",
        "columns = jnp.expand_dims(rows, -1)",
    ),
    Mutant(
        "linearise-conjugate-is-forgotten",
        "linearise/layout.py",
        "imag = -flat.imag if cotangent else flat.imag",
        "imag = flat.imag",
    ),
    Mutant(
        "linearise-joined-parts-without-the-gap",
        "linearise/passes/join_pads.py",
        "pieces += [*self._zeros(start - at, part), part]",
        "pieces += [part, *self._zeros(start - at, part)]",
    ),
    Mutant(
        "operators-lower-triangle-as-upper",
        "operators/block_triangular.py",
        'left, right, spec = right, left, "...iab,...jca->...ijcb"',
        'left, right, spec = right, left, "...iab,...jac->...ijcb"',
    ),
    Mutant(
        "operators-exponent-of-the-smaller",
        "operators/scaled.py",
        "top = jnp.maximum(*sizes)",
        "top = jnp.minimum(*sizes)",
    ),
    Mutant(
        "parallel-bytes-of-a-loop-once",
        "parallel/stats.py",
        "{kind: Collectives(times * c.count, times * c.bytes) for kind, c in part.items()}",
        "{kind: Collectives(times * c.count, c.bytes) for kind, c in part.items()}",
    ),
    Mutant(
        "pipeline-momentum-of-the-other-gradient",
        "pipeline/momentum.py",
        "lambda v, before, g: momentum * v - learning_rate * ((1 - s) * before + s * g),",
        "lambda v, before, g: momentum * v - learning_rate * (s * before + (1 - s) * g),",
    ),
    Mutant(
        "pipeline-one-batch-later",
        "pipeline/stale.py",
        "lax.cond(stage.count >= delay, arrived, waiting)",
        "lax.cond(stage.count > delay, arrived, waiting)",
    ),
    Mutant(
        "planner-cut-after-the-dearest",
        "planner/balanced.py",
        "worst = np.maximum(before[:j], until[j] - until[:j])",
        "worst = before[:j] + until[j] - until[:j]",
    ),
    Mutant(
        "plots-mean-begins-too-early",
        "plots/losses.py",
        "axes.plot(x[width - 1 :], mean,",
        "axes.plot(x[: len(mean)], mean,",
    ),
    Mutant(
        "primitives-tangent-of-a-residual",
        "primitives/linear_solve.py",
        "given[k] - p if k in given else -p for k, p",
        "given[k] + p if k in given else -p for k, p",
    ),
    Mutant(
        "pruning-masked-numbers-stay",
        "pruning.py",
        "jnp.where(m, u, -p)",
        "jnp.where(m, u, 0)",
    ),
    Mutant(
        "scan-first-state-of-a-reversed-scan",
        "scan/systems.py",
        "at_end = start + size == n if reverse else start == 0",
        "at_end = start == 0",
    ),
    Mutant(
        "scan-tangent-of-a-forwarded-output",
        "scan/tangents.py",
        "y_t.update({j: after_t[k] for j, k in body.forwarded.items() if k in after_t})",
        "y_t.update({j: after_t[min(after_t)] for j in body.forwarded if after_t})",
    ),
    Mutant(
        "solve-residual-with-the-wrong-sign",
        "solve.py",
        "return u - jnp.concatenate([pushed, jnp.zeros_like(u[:1])])",
        "return u + jnp.concatenate([pushed, jnp.zeros_like(u[:1])])",
    ),
    Mutant(
        "solvers-reduction-in-the-other-order",
        "solvers/cyclic_reduction.py",
        "maps = compose(first, second)",
        "maps = compose(second, first)",
    ),
    Mutant(
        "solvers-window-of-one-step-more",
        "solvers/truncated.py",
        "sweeps = min(self.window - 1, problem.length)",
        "sweeps = min(self.window, problem.length)",
    ),
    Mutant(
        "sparsity-last-term-of-a-sum",
        "sparsity/plan.py",
        "terms = (term(left[k], right[k]) for k in range(left.shape[0]))",
        "terms = (term(left[k], right[0]) for k in range(left.shape[0]))",
    ),
    Mutant(
        "structure-reversed-axis-is-its-own",
        "structure/rules_shape.py",
        'return keep(eqn, *eqn.params["dimensions"])',
        "return keep(eqn)",
    ),
    Mutant(
        "trees-rest-of-the-chunks",
        "trees.py",
        "last = f(jax.tree.map(lambda a: a[whole * size :], tree))",
        "last = f(jax.tree.map(lambda a: a[:rest], tree))",
    ),
    Mutant(
        "tuning-speedup-is-turned-round",
        "tuning/race.py",
        "ratios = np.median(theirs[drawn], axis=1) / np.median(ours[drawn], axis=1)",
        "ratios = np.median(ours[drawn], axis=1) / np.median(theirs[drawn], axis=1)",
    ),
)
"""In the order of their rooms."""
