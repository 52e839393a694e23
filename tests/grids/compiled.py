"""One layer of a divided stack, compiled alone: what its two programs really send."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from parscan_bp.parallel import collective_stats
from parscan_bp.parallel.grids.cost.program import local_params


def layer_bytes(stack, k, batch):
    """Bytes by kind of layer k's forward and backward program, as `Row.bytes_sent` gives them."""
    place, moves = stack.places[k], _moves(stack, k)
    specs = local_params(place, dict(stack.axes), jnp.float32)[1]
    x_spec = place.layout.spec(len(place.features) + 1)
    following = stack.places[k + 1 :]
    layout = following[0].layout if following else stack.layout
    features = following[0].features if following else stack.features
    f = jax.shard_map(
        place.layer.apply,
        mesh=stack.mesh,
        in_specs=(specs, x_spec),
        out_specs=layout.spec(len(features) + 1),
    )
    params, x = _whole_params(stack, place), _whole(stack, place.layout, place.features, batch)

    def pulled(params, x):
        if moves:
            return jax.vjp(f, params, x)
        return jax.vjp(lambda params: f(params, x), params)

    if not moves and not jax.tree.leaves(params):
        return _bytes(jax.jit(f).lower(params, x).compile()), {}
    forward = jax.jit(pulled).lower(params, x).compile()
    shapes = jax.eval_shape(pulled, params, x)
    y, pull = jax.tree.map(_struct, shapes, forward.output_shardings)
    backward = jax.jit(lambda pull, ct: pull(ct)).lower(pull, y).compile()
    return _bytes(forward), _bytes(backward)


def _moves(stack, k):
    before = [local_params(p, dict(stack.axes), jnp.float32)[0] for p in stack.places[:k]]
    return bool(jax.tree.leaves(before))


def _bytes(compiled):
    return {kind: found.bytes for kind, found in collective_stats(compiled).items()}


def _struct(a, sharding):
    return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)


def _whole_params(stack, place):
    init = functools.partial(place.layer.init, features=place.features, dtype=jnp.float32)
    if place.origin is None:
        return None
    whole = jax.eval_shape(lambda key: place.layer.placed(init(key)), jax.random.key(0))
    put = lambda leaf: NamedSharding(stack.mesh, place.layer.spec(leaf))  # noqa: E731
    return jax.tree.map(lambda leaf: _struct(leaf, put(leaf)), whole)


def _whole(stack, layout, features, batch):
    """The type of an activation with the padding of its blocks."""
    blocks = layout.blocks(features[:-1])
    shape = (batch, *(each.padded for each in blocks), features[-1])
    sharding = NamedSharding(stack.mesh, layout.spec(len(shape)))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def check_program(stack, batch, program):
    """Compares `grids.cost.program` with the compiled programs of every layer.

    Raises:
      AssertionError: naming the layer.
    """
    for k, row in enumerate(program.rows(stack, batch)):
        want = (row.bytes_sent("forward"), row.bytes_sent("backward"))
        got = layer_bytes(stack, k, batch)
        assert got == want, (row.name, stack.places[k].layout, got, want)


def whole_bytes(stack, batch):
    """Bytes by kind of value and gradient of the whole stack, in one program."""
    first = stack.places[0]
    params = [_whole_params(stack, p) for p in stack.places if p.origin is not None]
    x = _whole(stack, first.layout, first.features, batch)
    run = jax.shard_map(
        stack.on_device,
        mesh=stack.mesh,
        in_specs=(stack.specs(params), first.layout.spec(x.ndim)),
        out_specs=stack.layout.spec(len(stack.features) + 1),
    )

    def gradient(params, x, ct):
        y, pull = jax.vjp(lambda params: run(params, x), params)
        return y, pull(ct)

    ct = _whole(stack, stack.layout, stack.features, batch)
    return _bytes(jax.jit(gradient).lower(params, x, ct).compile())
