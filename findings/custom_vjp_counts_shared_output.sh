#!/usr/bin/env bash
# jax 0.10.1, the newest for Python 3.11: under `jax.vmap`, a `jax.custom_vjp` function of which one
# output is made of unmapped arguments alone has a wrong gradient, silently. Of a layer that returns
# a penalty |w|^2 beside its prediction sin(w x), mapped over three x, the penalty's part of the
# gradient by w counts three times: 19.085 where 7.085 is right. The backward pass
# is JAX's own, of the same function. Without `custom_vjp`, or with w mapped, too, it is right. jax
# 0.12.0.1 raises a ValueError in its place.
#
# Expected: the gradient of the same function without `custom_vjp`.
# Source: documentation of `jax.custom_vjp` (a correct rule gives the derivatives of the function)
# and of `jax.vmap` (it may stand inside of a derivative as well as around one).
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

print("jax", jax.__version__)


def layer(w, x):
    return w**2, jnp.sin(w * x)


def backward(args, cotangents):
    return jax.vjp(layer, *args)[1](cotangents)


with_rule = jax.custom_vjp(layer)
with_rule.defvjp(lambda *args: (layer(*args), args), backward)
xs = jnp.array([0.5, 1.0, 1.5])


def gradient(f, mapped):
    """Of the sum of all outputs, by a w that is the same for all x."""
    axes, w = ((0, 0), jnp.ones(3)) if mapped else ((None, 0), jnp.ones(()))

    def loss(w):
        penalty, prediction = jax.vmap(f, axes)(w, xs)
        return penalty.sum() + prediction.sum()

    return round(float(jax.grad(loss)(w).sum()), 3)


plain = gradient(layer, mapped=False)
found = gradient(with_rule, mapped=False)
print(f"gradient: {plain} of the function, {found} with its rule")
assert plain == gradient(layer, mapped=True) == gradient(with_rule, mapped=True)
assert round(found - plain, 3) == 12.0, "it has changed"
PROGRAM
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/program.py"
