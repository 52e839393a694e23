"""Seeded random graphs, each with a plain function of the same values: no code of graphs."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from parscan_bp.layers import (
    Add,
    Concatenate,
    Conv,
    Flatten,
    Function,
    JointFunction,
    LayerNorm,
    Linear,
    Multiply,
    as_layer,
)

DEEPEST, FEW = 40, 10
BATCH = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph, its parameters and inputs, the names of its outputs, and its plain function."""

    nodes: Mapping[str, Any]
    params: Mapping[str, Any]
    inputs: Mapping[str, jax.Array]
    outputs: tuple[str, ...]
    plain: Callable[[Any, Any], dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Made:
    """A node: what the graph is given, what its value is, and the shape of that."""

    node: Any
    plain: Callable[..., jax.Array]
    reads: tuple[str, ...]
    features: tuple[int, ...]


def random_graph(seed: int, dtype: Any = None, batch: int = BATCH) -> Case:
    """A graph of up to `DEEPEST` nodes: the first are small, then every tenth is that deep."""
    rng = np.random.default_rng(seed)
    dtype = jnp.result_type(float) if dtype is None else dtype
    most = 10 if seed < FEW else DEEPEST // 2
    count = DEEPEST if seed >= FEW and seed % 10 == 9 else int(rng.integers(1, most))
    shapes = {f"x{k}": _features(rng) for k in range(rng.integers(1, 4))}
    first, params, made = list(shapes), {}, {}
    numbers = functools.partial(_numbers, rng, dtype)
    for k in range(count):
        name = f"n{k}"
        while name not in made:
            draw = DRAWN[rng.integers(len(DRAWN))]
            found = draw(rng, name, shapes, params, made, numbers)
            if found is not None:
                made[name], shapes[name] = found, found.features
    read = {r for one in made.values() for r in one.reads}
    made["all"] = _of_all([n for n in shapes if n not in read], shapes)
    outputs = ("all", *(str(n) for n in rng.choice(list(made), min(2, len(made)), replace=False)))
    inputs = {name: numbers(batch, *shapes[name]) for name in first}
    shuffled = [list(made)[k] for k in rng.permutation(len(made))]
    nodes = {name: made[name].node for name in shuffled}
    return Case(nodes, params, inputs, tuple(dict.fromkeys(outputs)), _plain(made, outputs))


def _plain(made: Mapping[str, Made], outputs: tuple[str, ...]):
    def plain(params, inputs):
        values, batch = dict(inputs), len(inputs["x0"])
        for name, one in made.items():  # in the order in which they were drawn
            value = one.plain(params, *(values[read] for read in one.reads))
            values[name] = value if one.reads else jnp.broadcast_to(value, (batch, *value.shape))
        return {name: values[name] for name in outputs}

    return plain


def _features(rng) -> tuple[int, ...]:
    return tuple(rng.integers(1, 4, rng.choice([1, 1, 2])).tolist())


def _numbers(rng, dtype, *shape):
    return jnp.asarray(rng.normal(size=shape) * 0.7, dtype)


def _one(rng, shapes, axes=(1, 2)):
    names = [name for name, shape in shapes.items() if len(shape) in axes]
    # Mostly new ones, so that graphs are deep; sometimes any: skips over many nodes.
    return None if not names else str(rng.choice(names[-3:] if rng.random() < 0.6 else names))


def _alike(rng, shapes, same):
    """Names of two or three values that ``same`` maps to one key."""
    name = _one(rng, shapes)
    others = [n for n, shape in shapes.items() if same(shape) == same(shapes[name])]
    return (name, *(str(n) for n in rng.choice(others, rng.integers(1, 3))))


def _layer(layer, own, name, read, features, params):
    if own is not None:
        params[name] = own
    applied = as_layer(layer)
    plain = lambda params, x: applied.apply(params.get(name), x)  # noqa: E731
    return Made(pb.Node(layer, read), plain, (read,), features)


def _linear(rng, name, shapes, params, made, numbers):
    read, out = _one(rng, shapes), int(rng.integers(1, 4))
    own = {"kernel": numbers(shapes[read][-1], out), "bias": numbers(out)}
    return _layer(Linear(out), own, name, read, (*shapes[read][:-1], out), params)


def _shared(rng, name, shapes, params, made, numbers):
    """Another node with the parameters of a linear one."""
    linear = [n for n, one in made.items() if isinstance(getattr(one.node, "layer", 0), Linear)]
    sizes = {n: params[n]["kernel"].shape for n in linear if n in params}
    if not sizes:
        return None
    whose = str(rng.choice(list(sizes)))
    reads = [n for n, shape in shapes.items() if shape[-1] == sizes[whose][0]]
    if not reads:
        return None
    read, out = str(rng.choice(reads)), sizes[whose][1]
    layer = Linear(out)
    plain = lambda params, x: layer.apply(params[whose], x)  # noqa: E731
    node = pb.Node(layer, read, params=whose)
    return Made(node, plain, (read,), (*shapes[read][:-1], out))


def _conv(rng, name, shapes, params, made, numbers):
    read = _one(rng, shapes, (2,))
    if read is None:
        return None
    out = int(rng.integers(1, 4))
    own = {"kernel": numbers(3, shapes[read][-1], out), "bias": numbers(out)}
    return _layer(Conv(out, (3,)), own, name, read, (shapes[read][0], out), params)


def _activation(rng, name, shapes, params, made, numbers):
    read = _one(rng, shapes)
    layer = [jnp.tanh, jax.nn.relu, jax.nn.softmax, jax.nn.gelu][rng.integers(4)]
    return _layer(layer, None, name, read, shapes[read], params)


def _norm(rng, name, shapes, params, made, numbers):
    read = _one(rng, shapes)
    own = {"scale": numbers(shapes[read][-1]), "bias": numbers(shapes[read][-1])}
    return _layer(LayerNorm(0.3), own, name, read, shapes[read], params)


def _flatten(rng, name, shapes, params, made, numbers):
    read = _one(rng, shapes, (2,))
    if read is None:
        return None
    return _layer(Flatten(), None, name, read, (int(np.prod(shapes[read])),), params)


def _function(rng, name, shapes, params, made, numbers):
    read = _one(rng, shapes)
    own = numbers(*shapes[read])
    layer = Function(lambda p, x: jnp.sin(jnp.cumsum(p * x)))
    return _layer(layer, own, name, read, (int(np.prod(shapes[read])),), params)


def _add(rng, name, shapes, params, made, numbers):
    reads = _alike(rng, shapes, lambda shape: shape)
    plain = lambda params, *xs: sum(xs[1:], xs[0])  # noqa: E731
    return Made((Add(), *reads), plain, reads, shapes[reads[0]])


def _multiply(rng, name, shapes, params, made, numbers):
    reads = _alike(rng, shapes, lambda shape: shape)
    plain = lambda params, *xs: functools.reduce(jnp.multiply, xs)  # noqa: E731
    return Made(pb.Node(Multiply(), *reads), plain, reads, shapes[reads[0]])


def _concatenate(rng, name, shapes, params, made, numbers):
    reads = _alike(rng, shapes, lambda shape: shape[:-1])
    total = sum(shapes[read][-1] for read in reads)
    if total > 6:
        return None
    plain = lambda params, *xs: jnp.concatenate(xs, axis=-1)  # noqa: E731
    return Made((Concatenate(), *reads), plain, reads, (*shapes[reads[0]][:-1], total))


def _joint(rng, name, shapes, params, made, numbers):
    """A function of two values, elementwise in the first."""
    reads = (_one(rng, shapes), _one(rng, shapes))
    plain = lambda params, a, b: jnp.tanh(  # noqa: E731
        a * jnp.sum(jnp.sin(b), axis=tuple(range(1, b.ndim))).reshape(-1, *([1] * (a.ndim - 1)))
    )
    if rng.random() < 0.5:
        node = pb.Node(lambda a, b: jnp.tanh(a * jnp.sum(jnp.sin(b))), *reads)
        return Made(node, plain, reads, shapes[reads[0]])
    params[name] = numbers()
    node = pb.Node(JointFunction(lambda p, a, b: p * jnp.tanh(a * jnp.sum(jnp.sin(b)))), *reads)
    return Made(node, lambda p, a, b: p[name] * plain(p, a, b), reads, shapes[reads[0]])


def _constant(rng, name, shapes, params, made, numbers):
    value = numbers(*_features(rng))
    return Made(value, lambda params: value, (), value.shape)


DRAWN = (
    *(_linear, _linear, _activation, _activation, _add, _multiply, _concatenate, _concatenate),
    *(_shared, _conv, _norm, _flatten, _function, _joint, _joint, _constant),
)


def _of_all(names, shapes) -> Made:
    """A value that depends on all that no other node reads."""

    def one(*xs):
        return jnp.stack([jnp.sum(jnp.cos(x)) for x in xs])

    plain = lambda params, *xs: jnp.stack(  # noqa: E731
        [jnp.sum(jnp.cos(x), axis=tuple(range(1, x.ndim))) for x in xs], axis=1
    )
    return Made(pb.Node(one, *names), plain, tuple(names), (len(names),))
