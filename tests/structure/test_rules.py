"""Each axis map against the Jacobian of the primitive alone, in both directions.

All axes have one size, so that an axis taken for another is noticed.
"""

from __future__ import annotations

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
            return jnp.asarray(atom.val)
        dtype, shape = atom.aval.dtype, atom.aval.shape
        if jnp.issubdtype(dtype, jnp.inexact):
            return jnp.asarray(rng.uniform(0.2, 0.9, shape) + shift, dtype)
        return jnp.asarray(rng.integers(0, 2, shape), dtype)

    values = [draw(atom) for atom in eqn.invars]
    if eqn.primitive.name == "cholesky":
        values[0] = values[0] @ values[0].mT + jnp.eye(N)
    if eqn.primitive.name == "eigh":
        values[0] = values[0] + values[0].mT
    return values


def support(eqn, result, operand):
    """Of operand values, the non-zero entries of d result / d operand, (*result, *operand)."""
    shape, atom = shape_of(eqn.outvars[result]), eqn.invars[operand]
    size = int(np.prod(shape_of(atom)))
    units = np.eye(size).reshape(size, *shape_of(atom))
    if jnp.issubdtype(atom.aval.dtype, jnp.complexfloating):
        units = np.concatenate([units, 1j * units])

    @jax.jit
    def columns(values):
        def f(value):
            merged = (*values[:operand], value, *values[operand + 1 :])
            outs = eqn.primitive.bind(*merged, **eqn.params)
            return outs[result] if eqn.primitive.multiple_results else outs

        at = (values[operand],)
        return lax.map(lambda dot: jax.jvp(f, at, (dot,))[1], jnp.asarray(units, atom.aval.dtype))

    def entries(values):
        nonzero = np.asarray(columns(values) != 0).reshape(-1, size, *shape).any(0)
        return np.moveaxis(nonzero, 0, -1).reshape(*shape, *shape_of(atom))

    return entries


def check(eqn):
    maps = axis_maps(eqn)
    # Random indices may coincide with an axis, a clamp may meet none of its bounds: take several.
    several = eqn.primitive.name == "clamp" or not all(is_inexact(atom) for atom in eqn.invars)
    seeds = range(4 if several else 1)
    points = [operands_of(eqn, seed) for seed in seeds]
    assert [len(row) for row in maps] == [len(eqn.invars)] * len(eqn.outvars)
    pairs = itertools.product(enumerate(eqn.outvars), enumerate(eqn.invars))
    for (result, out), (operand, atom) in pairs:
        if not is_inexact(out) or not is_inexact(atom) or hasattr(atom, "val"):
            continue
        axis_map = maps[result][operand]
        entries = support(eqn, result, operand)
        block = sum(entries(values) for values in points) > 0
        where = np.argwhere(block).T
        if axis_map is None:
            assert not block.any()
            continue
        rank = len(shape_of(out))
        assert len(axis_map) == rank
        assert block.any()
        for k, a in itertools.product(range(rank), range(len(shape_of(atom)))):
            size = shape_of(atom)[a]
            elementwise = shape_of(out)[k] == size and (where[k] == where[rank + a]).all()
            assert (axis_map[k] == a) == elementwise or size == 1, (result, operand, k, a)


def skip_without(name):
    if name in ("log2", "one_minus_square", "polynomial") and not hasattr(lax, name):
        pytest.skip(f"this jax has no lax.{name}")
    if name in ("frexp", "ldexp") and jax.__version_info__ < (0, 12):
        pytest.skip(f"jnp.{name} is made of other operations in this jax")


@pytest.mark.parametrize("name, f, shapes", CASES, ids=[case[0] for case in CASES])
def test_rule(name, f, shapes):
    skip_without(name)
    check(equation(name, f, shapes))


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_elementwise(name):
    f, shapes = ELEMENTWISE_CASES.get(name, (getattr(lax, name, None), (M,)))
    skip_without(name)
    eqn = equation(name, f, shapes)
    if name in NO_DERIVATIVE:
        assert axis_maps(eqn)[0][-1] == (0, 1)
        return
    check(eqn)


def test_every_rule_has_a_case():
    assert set(RULES) == {*ELEMENTWISE, *(case[0] for case in CASES)}


def test_an_unknown_primitive_mixes_everything():
    eqn = equation("reduce_and", lambda a: (a > 0).all(1), (M,))
    assert axis_maps(eqn) == [[(None,)]]
