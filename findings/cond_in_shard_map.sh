#!/usr/bin/env bash
# jax 0.12.0.1 and 0.10.1: inside `jax.shard_map`, the result of `lax.cond` has the type of its
# branches, whatever its predicate is. Where the predicate differs from device to device and the
# branches are constants, JAX takes the result to be the same on all devices:
#
#   - `out_specs=P()`, which promises that, is accepted (`jnp.where` in its place is refused);
#   - a gradient through it is wrong, without a word: that of sum_i y_i w by w is sum_i y_i = 4,
#     and 2 comes, which is 4 times the y of one device. The value, 8, is right.
#
# Expected: the type that `jnp.where` has, `float32[]{V:t}`, and the gradient 4.
# Source: documentation of `jax.shard_map`, "Tracking how values vary over manual mesh axes, and
# check_vma=True": types are to tell what varies, and with check_vma=True `out_specs` are checked.
# Reported as jax#40823, open.
#
# Fails if that changes. Needs Python 3.11 (jax 0.10.1) or newer (jax 0.12.0.1).
set -euo pipefail

python=${PYTHON:-python3}
version=$("$python" -c 'import sys; print("0.10.1" if sys.version_info < (3, 12) else "0.12.0.1")')
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "jax==$version" "jaxlib==$version"

cat >"$folder/program.py" <<'PROGRAM'
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

print("jax", jax.__version__)
mesh = jax.make_mesh((4,), ("t",), axis_types=(AxisType.Auto,))
x = jnp.array([-1.0, 1.0, 2.0, -3.0])  # one number a device: 0.5, 1.5, 1.5, 0.5 follow from it
KINDS = {
    "cond": lambda x: lax.cond(x[0] > 0, lambda: 1.5, lambda: 0.5),
    "where": lambda x: jnp.where(x[0] > 0, 1.5, 0.5),
}
found = {}
for name, kind in KINDS.items():
    total = jax.shard_map(
        lambda x, w, kind=kind: lax.psum(kind(x) * w, "t"),
        mesh=mesh,
        in_specs=(P("t"), P()),
        out_specs=P(),
    )
    value, gradient = jax.value_and_grad(lambda w, total=total: total(x, w))(2.0)
    try:
        jax.shard_map(kind, mesh=mesh, in_specs=P("t"), out_specs=P())(x)
        promise = "accepted"
    except ValueError:
        promise = "refused"
    found[name] = float(value), float(gradient), promise
    print(f"{name}: value {value}, gradient {gradient}, out_specs=P() is {promise}")
print("expected of both: value 8.0, gradient 4.0, refused")
assert found == {"cond": (8.0, 2.0, "accepted"), "where": (8.0, 4.0, "refused")}, "it has changed"
PROGRAM
XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu \
  "$folder/venv/bin/python" "$folder/program.py"
