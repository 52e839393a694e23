#!/usr/bin/env bash
# jax 0.10.1, the newest for Python 3.11 that computes rightly otherwise: second derivatives through
# `lax.scan` forget a `jax.custom_jvp` in its step. Of f with slope 3, in a loop of two steps, the
# derivative of the value, and so of everything else, comes out as if f had the slope of its
# program where it is taken through `jax.value_and_grad`: 0.405 and not 3.645; `jax.grad(jax.grad)`
# gives 3.645 and not 32.805. First derivatives are right. The same steps in a Python loop are right
# throughout; and both are from jax 0.12 on.
#
# Expected: `lax.scan` has the derivatives of the loop that its documentation says it is.
# Source: documentation of `jax.lax.scan` (its semantics are those of a Python loop) and of
# `jax.custom_jvp` (the rule is the derivative, of any order).
#
# Fails if that changes. Needs Python 3.11.
set -euo pipefail

python=${PYTHON:-python3.11}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.1 jaxlib==0.10.1

cat >"$folder/program.py" <<'PROGRAM'
import jax
import jax.numpy as jnp
from jax import lax

print("jax", jax.__version__)


@jax.custom_jvp
def f(x):
    return x


f.defjvp(lambda primals, tangents: (f(*primals), 3 * tangents[0]))
xs = jnp.array([0.5, 0.9])


def by_scan(h):
    return lax.scan(lambda h, x: (f(h) * x, None), h, xs)[0] ** 2


def by_loop(h):
    for x in xs:
        h = f(h) * x
    return h**2


found = {}
for loss in (by_scan, by_loop):
    first = jax.jvp(loss, (1.0,), (1.0,))[1]
    again, _ = jax.jvp(jax.value_and_grad(loss), (1.0,), (1.0,))[1]
    second = jax.grad(jax.grad(loss))(1.0)
    found[loss.__name__] = [round(float(v), 3) for v in (first, again, second)]
    print(f"{loss.__name__}: derivative {first}, beside a gradient {again}, second {second}")
print("expected of both: 3.645, 3.645, 32.805")
assert found["by_loop"] == [3.645, 3.645, 32.805], "the loop is wrong"
assert found["by_scan"] == [3.645, 0.405, 3.645], "it has changed"
PROGRAM
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/program.py"
