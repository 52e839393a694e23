#!/usr/bin/env bash
# jax 0.10.1 on Python 3.11, and 0.12.0.1 on 3.12: a `jax.shard_map` over two devices that adds two
# arrays without entries and sums the result is not compiled. XLA's partitioner (Shardy) ends with
# "'func.call' op expected at least one operand of @xla.sdy.manual_computation_body to be produced
# by a xla.sdy.GlobalToLocalShape CustomCallOp". The same function of one array without entries, of
# two without the sum, and of two with entries is compiled and right; so is all of it on one device
# without `shard_map`, where the sum of no numbers is 0.
#
# Expected: [0, 0] of two arrays of shape (2, 0), as `jax.jit` without `shard_map` gives.
# Source: documentation of `jax.shard_map` (the function is applied to the shards as it stands) and
# of `jax.numpy.sum` (of an empty axis it is 0).
#
# Fails if that changes. Needs Python 3.11, and says what a Python 3.12 has if PYTHON312 names one.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/program.py" <<'PROGRAM'
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

print("jax", jax.__version__)
mesh = Mesh(np.array(jax.devices()), ("d",))
assert mesh.size == 2
rows = PartitionSpec("d")


def sums(a, b):
    return jnp.sum(a + b, axis=1)


def sums_of_one(a):
    return jnp.sum(2 * a, axis=1)


def added(a, b):
    return a + b


def divided(f, count):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(rows,) * count, out_specs=rows))


empty, full = jnp.ones((2, 0)), jnp.ones((2, 3))
assert jax.jit(sums)(empty, empty).tolist() == [0, 0]
assert divided(sums_of_one, 1)(empty).tolist() == [0, 0]
assert divided(added, 2)(empty, empty).shape == (2, 0)
assert divided(sums, 2)(full, full).tolist() == [6, 6]
print("of one, without the sum, with entries: right")
try:
    got = divided(sums, 2)(empty, empty)
except jax.errors.JaxRuntimeError as error:
    said = str(error).splitlines()[0].partition("error: ")[2]
    print("sum of two without entries:", said)
    assert "GlobalToLocalShape" in said, "it has changed"
else:
    raise SystemExit(f"it has changed: {got}")
PROGRAM

try() {
  "$1" -m venv "$folder/$2"
  "$folder/$2/bin/pip" install -q "jax==$2" "jaxlib==$2"
  JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=2 \
    "$folder/$2/bin/python" "$folder/program.py"
}

try "${PYTHON:-python3.11}" 0.10.1
if [ -n "${PYTHON312:-}" ]; then
  try "$PYTHON312" 0.12.0.1
fi
