#!/usr/bin/env bash
# jax 0.10.1 on Python 3.11, and 0.12.0.1 on 3.12, with XLA's machine code not optimised on a CPU
# (`--xla_backend_optimization_level=0`): of z = y s + b the row-wise maximum m = max(z) is equal to
# no entry of z in a quarter of the rows, `jnp.sum(z == m, -1)` is 0. XLA computes z once for the
# maximum and again for the comparison, and rounds in one of them product and sum at once. `jax.grad`
# of a maximum divides by that count: of z = (y - mean) s + b, as of normalised images before their
# pooling, all of the gradient is NaN. At the default level z is rounded alike, and all is right.
#
# Expected: a maximum is one of the numbers of which it is taken; the gradient of finite numbers by
# `jnp.max` is finite.
# Source: documentation of `jax.numpy.max`, and of `jax.jit` (it computes what the function does).
#
# Fails if that changes. Needs Python 3.11, and says what a Python 3.12 has if PYTHON312 names one.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/program.py" <<'PROGRAM'
import os

import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
y, s, b = (rng.normal(size=(4096, n)).astype(np.float32) for n in (4, 1, 1))


def affine(y):
    return y * s + b


def shares(y):
    """What the gradient of a maximum is made of."""
    z = affine(y)
    hit = z == z.max(-1, keepdims=True)
    count = jnp.sum(hit.astype(jnp.float32), -1, keepdims=True)
    return count, hit / count


def highest(y):
    return affine(y - y.mean(0)).max(-1).sum()


without = int((jax.jit(shares)(y)[0] == 0).sum())
wrong = int(jnp.isnan(jax.jit(jax.grad(highest))(y)).sum())
print("jax", jax.__version__, os.environ.get("XLA_FLAGS", "at the default level"))
print(f"  rows without their maximum: {without}; entries of a gradient that are NaN: {wrong}")
if "XLA_FLAGS" in os.environ:
    assert without > 0 and wrong == y.size, "it has changed"
else:
    assert (without, wrong) == (0, 0), "it is wrong at the default level, too"
PROGRAM

try() {
  "$1" -m venv "$folder/$2"
  "$folder/$2/bin/pip" install -q "jax==$2" "jaxlib==$2"
  JAX_PLATFORMS=cpu "$folder/$2/bin/python" "$folder/program.py"
  JAX_PLATFORMS=cpu XLA_FLAGS=--xla_backend_optimization_level=0 \
    "$folder/$2/bin/python" "$folder/program.py"
}

try "${PYTHON:-python3.11}" 0.10.1
if [ -n "${PYTHON312:-}" ]; then
  try "$PYTHON312" 0.12.0.1
fi
