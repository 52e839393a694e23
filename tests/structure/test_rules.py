"""Each axis map against the Jacobian of the primitive alone, in both directions.

All axes have one size, so that an axis taken for another is noticed.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.primitive_kinds import ELEMENTWISE
from parscan_bp.jaxprs.read import is_inexact, shape_of, walk
from parscan_bp.structure.rules import RULES, axis_maps

N = 3
M, T = (N, N), (N, N, N)
lin = lax.linalg
_CONV = ("NWC", "WIO", "NWC")


def conv(image, kernel, groups=1, **options):
    return lax.conv_general_dilated(
        image,
        kernel,
        **{"window_strides": (1,), "padding": "SAME", **options},
        dimension_numbers=_CONV,
        feature_group_count=groups,
    )


def scatter(method, index):
    return lambda a, b: getattr(a.at[index], method)(b, unique_indices=True)


ROW = np.array([2, 0])
CASES = [
    ("optimization_barrier", lambda a, b: lax.optimization_barrier((a, b)), (M, M)),
    ("device_put", lambda a, b: jax.device_put((a, b)), (M, M)),
    ("reduce_sum", lambda a: a.sum(1), (T,)),
    ("reduce_max", lambda a: a.max((0, 2)), (T,)),
    ("reduce_min", lambda a: a.min(0), (T,)),
    ("reduce_prod", lambda a: a.prod(1), (M,)),
    ("cumsum", lambda a: jnp.cumsum(a, 1), (T,)),
    ("cumprod", lambda a: jnp.cumprod(a, 0), (M,)),
    ("cummax", lambda a: lax.cummax(a, 1, reverse=True), (M,)),
    ("cummin", lambda a: lax.cummin(a, 0), (M,)),
    ("cumlogsumexp", lambda a: lax.cumlogsumexp(a, 1), (M,)),
    ("slice", lambda a: a[1:, :, ::2], (T,)),
    ("dynamic_slice", lambda a: lax.dynamic_slice(a, (1, 1), (2, N)), (M,)),
    ("transpose", lambda a: a.transpose(1, 2, 0), (T,)),
    ("broadcast_in_dim", lambda a: lax.broadcast_in_dim(a, T, (0, 2)), (M,)),
    ("broadcast_in_dim", lambda a: lax.broadcast_in_dim(a, T, (0, 2)), ((N, 1),)),
    ("reshape", lambda a: a.reshape(N * N, N), (T,)),
    ("reshape", lambda a: a.reshape(N, N * N), (T,)),
    ("reshape", lambda a: a.reshape(N, N, N), ((N, N * N),)),
    ("squeeze", lambda a: lax.squeeze(a, (1,)), ((N, 1, N),)),
    ("stack", lambda a, b: jnp.stack([a, b, a], 1), (M, M)),
    ("unstack", lambda a: jnp.unstack(a, axis=1), (T,)),
    ("tile", lambda a: jnp.tile(a, (1, 2)), (M,)),
    ("concatenate", lambda a, b: jnp.concatenate([a, b], 1), (M, M)),
    ("split", lambda a: lax.split(a, (1, 2), 1), (T,)),
    ("rev", lambda a: lax.rev(a, (1,)), (T,)),
    ("sort", lambda a: lax.sort(a, dimension=0), (M,)),
    ("sort", lambda a, b: lax.sort((a, b), dimension=1, num_keys=1), (M, M)),
    ("top_k", lambda a: lax.top_k(a, N)[0], (M,)),
    ("pad", lambda a, b: lax.pad(a, b, [(1, 0, 0), (0, 0, 0), (-1, 1, 0)]), (T, ())),
    ("dynamic_update_slice", lambda a, b: lax.dynamic_update_slice(a, b, (1, 0)), (M, (2, N))),
    ("dot_general", lambda a, b: a @ b, (M, M)),
    ("dot_general", lambda a, b: jnp.einsum("bij,jbk->bik", a, b), (T, T)),
    ("dot_general", lambda a, b: jnp.einsum("ibj,kbl->bijkl", a, b), (T, T)),
    ("conv_general_dilated", conv, (T, (2, N, N))),
    ("conv_general_dilated", conv, (T, (1, N, N))),
    ("conv_general_dilated", lambda a, b: conv(a, b, N), (T, (2, 1, N))),
    ("conv_general_dilated", lambda a, b: conv(a, b, padding=[(1, -1)]), (T, (1, N, N))),
    (
        "conv_general_dilated",
        lambda a, b: conv(a, b, lhs_dilation=(2,), padding=[(0, -2)]),
        (T, (1, N, N)),
    ),
    ("conv_general_dilated", lambda a, b: conv(a, b, 3), ((N, N, 6), (2, 2, N))),
    (
        "reduce_window_sum",
        lambda a: lax.reduce_window(a, 0.0, lax.add, (1, 2), (1, 1), "SAME"),
        (M,),
    ),
    (
        "reduce_window_max",
        lambda a: lax.reduce_window(a, -np.inf, lax.max, (2, 1), (1, 1), "SAME"),
        (M,),
    ),
    (
        "reduce_window_min",
        lambda a: lax.reduce_window(a, np.inf, lax.min, (1, 1), (1, 1), [(1, -1), (0, 0)]),
        (M,),
    ),
    ("gather", lambda a: a[:, ROW], (T,)),
    ("gather", lambda a: a[np.arange(N), :, [1, 0, 2]], (T,)),
    ("gather", lambda a: jnp.take_along_axis(a, np.array([[2, 0, 0]] * N), 1), (M,)),
    ("gather", lambda a: jax.vmap(lambda v, i: v[i], (1, 0))(a, np.array([2, 0, 1])), (T,)),
    ("scatter", scatter("set", (slice(None), ROW)), (M, (N, 2))),
    (
        "scatter",
        lambda a, b: jax.vmap(lambda v, u, i: v.at[i].set(u))(a, b, ROW[[0, 1, 0]]),
        (T, M),
    ),
    (
        "scatter",
        lambda a, b: jax.vmap(lambda v, u, i: v.at[i].set(u), (1, 1, 0), 1)(a, b, ROW[[0, 1, 0]]),
        (T, M),
    ),
    ("scatter-add", lambda a, b: a.at[np.array([1, 1])].add(b), (M, (2, N))),
    ("scatter-mul", scatter("multiply", ROW), (M, (2, N))),
    ("scatter-min", scatter("min", (slice(None), 1)), (M, (N,))),
    ("scatter-max", scatter("max", (1,)), (M, (N,))),
    ("cholesky", lambda a: lin.cholesky(a, symmetrize_input=False), (T,)),
    ("triangular_solve", lambda a, b: lin.triangular_solve(a, b, left_side=True), (T, T)),
    ("triangular_solve", lambda a, b: lin.triangular_solve(a, b), (T, T)),
    ("lu", lambda a: lin.lu(a)[0], (T,)),
    ("qr", lambda a: lin.qr(a, full_matrices=False), (T,)),
    ("eigh", lambda a: lin.eigh(a, symmetrize_input=False), (T,)),
    ("svd", lambda a: lin.svd(a, full_matrices=False), (T,)),
    ("frexp", lambda a: jnp.frexp(a), (M,)),
    ("fft", lambda a: jnp.fft.fft(a), (T,)),
    ("fft", lambda a: jnp.fft.rfftn(a, axes=(1, 2)), (T,)),
]

ELEMENTWISE_CASES = {
    **{
        name: (getattr(lax, name, None), (M, M))
        for name in "add atan2 complex div max min mul nextafter pow rem sub igamma igammac "
        "igamma_grad_a zeta".split()
    },
    "add_any": (lambda a: jax.vjp(lambda v: v * jnp.sin(v), a)[1](a)[0], (M,)),
    "clamp": (lax.clamp, (M, M, M)),
    "conj": (lambda a, b: lax.conj(lax.complex(a, b)), (M, M)),
    "convert_element_type": (lambda a: a.astype(jnp.bfloat16), (M,)),
    "copy": (jnp.copy, (M,)),
    "imag": (lambda a, b: lax.imag(lax.complex(a, b)), (M, M)),
    "integer_pow": (lambda a: lax.integer_pow(a, 3), (M,)),
    "ldexp": (lambda a: jnp.ldexp(a, np.arange(N)), (M,)),
    "name": (lambda a: checkpoint_name(a, "a"), (M,)),
    "polygamma": (lambda a: lax.polygamma(jnp.ones(M), a), (M,)),
    "polynomial": (lambda a: lax.polynomial(a, [1.0, 2.0]), (M,)),
    "real": (lambda a, b: lax.real(lax.complex(a, b)), (M, M)),
    "reduce_precision": (lambda a: lax.reduce_precision(a, 8, 7), (M,)),
    "regularized_incomplete_beta": (lax.betainc, (M, M, M)),
    "select_n": (lambda a, b: lax.select_n(a > 0.5, a, b), (M, M)),
    "sharding_constraint": (lambda a: lax.with_sharding_constraint(a, one_device()), (M,)),
    "sub": (lambda a, b: lax.sub(a, b), (M, (N, 1))),
}
# Not differentiable with respect to some operand in some version of jax, or derivative zero; the
# incomplete gamma functions compile for seconds.
NO_DERIVATIVE = {
    "igamma",
    "igamma_grad_a",
    "igammac",
    "nextafter",
    "polygamma",
    "regularized_incomplete_beta",
    "sign",
    "zeta",
}


def one_device():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def equation(name, f, shapes):
    """The equation of that primitive in f's jaxpr."""
    body = jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(shape, jnp.zeros(0).dtype) for shape in shapes))
    found = [eqn for eqn in walk(body) if kind_of(eqn) == name]
    assert found, f"{name} is not in the jaxpr: {[kind_of(e) for e in walk(body)]}"
    return found[-1]


def operands_of(eqn, seed):
    """Numbers between 0.2 and 0.9, larger where only these are in the domain; indices 0 and 1."""
    rng = np.random.default_rng(seed)
    shift = 1.0 if eqn.primitive.name == "acosh" else 0.0

    def draw(atom):
        if hasattr(atom, "val"):
            return np.asarray(atom.val)
        dtype, shape = atom.aval.dtype, atom.aval.shape
        if jnp.issubdtype(dtype, jnp.inexact):
            return np.asarray(rng.uniform(0.2, 0.9, shape) + shift, dtype)
        return np.asarray(rng.integers(0, 2, shape), dtype)

    values = [draw(atom) for atom in eqn.invars]
    if eqn.primitive.name == "cholesky":
        values[0] = values[0] @ np.swapaxes(values[0], -1, -2) + np.eye(N, dtype=values[0].dtype)
    if eqn.primitive.name == "eigh":
        values[0] = values[0] + np.swapaxes(values[0], -1, -2)
    return values


def pairs_of(eqn):
    """The results and operands between which there are derivatives."""
    pairs = itertools.product(enumerate(eqn.outvars), enumerate(eqn.invars))
    return [
        (result, operand)
        for (result, out), (operand, atom) in pairs
        if is_inexact(out) and is_inexact(atom) and not hasattr(atom, "val")
    ]


def nonzero(eqn, result, operand, values):
    """Of every unit vector, the non-zero entries of its product with d result / d operand."""
    atom = eqn.invars[operand]
    size = int(np.prod(shape_of(atom)))
    units = np.eye(size).reshape(size, *shape_of(atom))
    if jnp.issubdtype(atom.aval.dtype, jnp.complexfloating):
        units = np.concatenate([units, 1j * units])

    def f(value):
        merged = (*values[:operand], value, *values[operand + 1 :])
        outs = eqn.primitive.bind(*merged, **eqn.params)
        return outs[result] if eqn.primitive.multiple_results else outs

    push = lambda dot: jax.jvp(f, (values[operand],), (dot,))[1] != 0  # noqa: E731
    return lax.map(push, jnp.asarray(units.astype(atom.aval.dtype)))


def supports(eqns):
    """Of each, by pair: the non-zero entries (*result, *operand) at some point, of one program."""
    # Random indices may coincide with an axis, a clamp may meet none of its bounds: take several.
    several = [
        eqn.primitive.name == "clamp" or not all(is_inexact(atom) for atom in eqn.invars)
        for eqn in eqns
    ]
    program = jax.jit(
        lambda points: [
            {pair: nonzero(eqn, *pair, values) for pair in pairs_of(eqn)}
            for eqn, values in zip(eqns, points, strict=True)
        ]
    )
    seeds = [[k if many else 0 for many in several] for k in range(4 if any(several) else 1)]
    points = [list(map(operands_of, eqns, own)) for own in seeds]
    found = [program(values) for values in points]
    return [
        {pair: _entries(eqn, *pair, [at[n][pair] for at in found]) for pair in pairs_of(eqn)}
        for n, eqn in enumerate(eqns)
    ]


def _entries(eqn, result, operand, found):
    out, of = shape_of(eqn.outvars[result]), shape_of(eqn.invars[operand])
    parts = [np.asarray(a).reshape(-1, int(np.prod(of)), *out) for a in found]
    return np.moveaxis(np.concatenate(parts).any(0), 0, -1).reshape(*out, *of)


def check(eqn, blocks):
    maps = axis_maps(eqn)
    assert [len(row) for row in maps] == [len(eqn.invars)] * len(eqn.outvars)
    for result, operand in pairs_of(eqn):
        axis_map, block = maps[result][operand], blocks[result, operand]
        where = np.argwhere(block).T
        if axis_map is None:
            assert not block.any()
            continue
        out, of = shape_of(eqn.outvars[result]), shape_of(eqn.invars[operand])
        rank = len(out)
        assert len(axis_map) == rank
        assert block.any()
        for k, a in itertools.product(range(rank), range(len(of))):
            elementwise = out[k] == of[a] and (where[k] == where[rank + a]).all()
            assert (axis_map[k] == a) == elementwise or of[a] == 1, (result, operand, k, a)


def is_missing(name):
    """Why a primitive has no case in this jax, if so."""
    if name in ("log2", "one_minus_square", "polynomial") and not hasattr(lax, name):
        return f"this jax has no lax.{name}"
    if name in ("frexp", "ldexp") and jax.__version_info__ < (0, 12):
        return f"jnp.{name} is made of other operations in this jax"
    return ""


def case_of(name):
    return ELEMENTWISE_CASES.get(name, (getattr(lax, name, None), (M,)))


ALL = [*CASES, *((name, *case_of(name)) for name in sorted(ELEMENTWISE - NO_DERIVATIVE))]
HERE = [k for k, (name, *_) in enumerate(ALL) if not is_missing(name)]
TOGETHER = 16
"""Rules that are checked by one program."""


@functools.cache
def truths(number):
    """The equations and supports of so many cases, by their places in `ALL`."""
    places = HERE[number * TOGETHER : (number + 1) * TOGETHER]
    eqns = [equation(*ALL[k]) for k in places]
    return dict(zip(places, zip(eqns, supports(eqns), strict=True), strict=True))


@pytest.mark.parametrize("k", range(len(ALL)), ids=[name for name, *_ in ALL])
def test_rule(k):
    if why := is_missing(ALL[k][0]):
        pytest.skip(why)
    check(*truths(HERE.index(k) // TOGETHER)[k])


@pytest.mark.parametrize("name", sorted(NO_DERIVATIVE & ELEMENTWISE))
def test_elementwise_without_derivative(name):
    if why := is_missing(name):
        pytest.skip(why)
    assert axis_maps(equation(name, *case_of(name)))[0][-1] == (0, 1)


def test_every_rule_has_a_case():
    assert set(RULES) == {*ELEMENTWISE, *(case[0] for case in CASES)}


def test_an_unknown_primitive_mixes_everything():
    eqn = equation("reduce_and", lambda a: (a > 0).all(1), (M,))
    assert axis_maps(eqn) == [[(None,)]]
