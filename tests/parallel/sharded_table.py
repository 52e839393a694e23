"""Steps with each activation, control flow and rule of a user's, over virtual devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

import parscan_bp as pb
from parscan_bp.solvers.sharded import METHODS as OF_MAPS
from parscan_bp.solvers.sharded import OF_VECTORS
from tests.family import assert_derivatives_close, float_leaves
from tests.parallel.sharded_cases import TOLERANCE, line_mesh, modes, placed

H, B, LENGTH, DEVICES = 3, 2, 8, 4


@jax.custom_jvp
def spike(v):
    """A step function with the slope of another one."""
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda at, ts: (spike(*at), ts[0] / (1 + jnp.abs(at[0])) ** 2))


@jax.custom_jvp
def gated(v, gate):
    """Its rule asks which tangents are zero, and calls functions with rules."""
    return nn.relu(v) * spike(gate) + nn.softplus(gate)


def _gated_rule(at, ts):
    (v, gate), (t, gate_t) = at, ts
    symbolic = jax.custom_derivatives.SymbolicZero
    slope = 0 if isinstance(t, symbolic) else 0.5 * nn.sigmoid(v) * t
    return gated(v, gate), slope + (0 if isinstance(gate_t, symbolic) else nn.relu(gate) * gate_t)


gated.defjvp(_gated_rule, symbolic_zeros=True)


@jax.custom_jvp
def counted(v):
    """A number and how many it was made of, which has no tangent."""
    return jnp.sum(nn.relu(v), -1, keepdims=True), jnp.sum(v > 0)


@counted.defjvp
def _counted_rule(at, ts):
    slope = jnp.sum(0.3 * ts[0], -1, keepdims=True)
    return counted(*at), (slope, jax.custom_derivatives.zero_from_primal(jnp.sum(at[0] > 0)))


@jax.custom_batching.custom_vmap
def doubled(v):
    return 2 * nn.relu(v)


doubled.def_vmap(lambda size, batched, v: (2 * nn.relu(v), batched[0]))


def inner_scan(v):
    """Begins with what is the same on all devices."""
    add = lambda c, a: (nn.relu(c + a) + 0.1 * a, spike(c))  # noqa: E731
    last, ys = lax.scan(add, jnp.zeros(B, v.dtype), v.T)
    return ys.T + last[:, None]


def matrix(v):
    return 3 * jnp.eye(H, dtype=v.dtype) + v.T @ v / 4


def slopes_inside(v):
    return jax.grad(lambda v: jnp.sum(nn.softplus(v) ** 2))(v)


def scan_inside(v, derivative=False):
    def last(v):
        return pb.scan(lambda c, a: (nn.relu(c + a), None), 0 * v[0], v, solver=pb.Sweep())[0]

    return v + (jax.jvp(last, (v,), (v,))[1] if derivative else last(v))


FUNCTIONS = {
    **{name: getattr(nn, name) for name in ("relu", "relu6", "elu", "selu", "silu", "gelu")},
    **{name: getattr(nn, name) for name in ("celu", "softplus", "leaky_relu", "log_sigmoid")},
    **{name: getattr(nn, name) for name in ("mish", "hard_tanh", "squareplus", "log_softmax")},
    "logaddexp": lambda v: jnp.logaddexp(v, 0.3),
    "logaddexp of itself": lambda v: jnp.logaddexp(v, v[:, ::-1]),
    "logsumexp": lambda v: v - nn.logsumexp(v, -1, keepdims=True),
    "xlogy": lambda v: jax.scipy.special.xlogy(v**2, 1 + v**2),
    "sinc": jnp.sinc,
    "abs": jnp.abs,
    "clip": lambda v: jnp.clip(v, -0.5, 0.7),
    "norm": lambda v: v / jnp.linalg.norm(v + 2, axis=-1, keepdims=True),
    "sort": lambda v: jnp.sort(v, -1),
    "top_k": lambda v: v + lax.top_k(v, 1)[0],
    "cumsum": lambda v: jnp.cumsum(v, -1),
    "cumlogsumexp": lambda v: lax.cumlogsumexp(v, 1),
    "cumprod": lambda v: jnp.cumprod(v, -1),
    "associative_scan": lambda v: lax.associative_scan(jnp.multiply, v, axis=1),
    "cond": lambda v: lax.cond(v[0, 1] > 0, lambda v: nn.relu(v), lambda v: jnp.ones_like(v), v),
    "cond of nothing": lambda v: v * lax.cond(v.sum() > 0, lambda: 1.5, lambda: 0.5),
    "switch": lambda v: lax.switch(jnp.sum(v[:, 1] > 0), [nn.relu, spike, nn.softplus], v),
    "inner scan": inner_scan,
    "fori_loop": lambda v: lax.fori_loop(0, 3, lambda k, a: nn.relu(a * v[0, k]) + a, v),
    "while_loop": lambda v: v * lax.while_loop(lambda k: k < 1 + (v.sum() > 0), lambda k: k + 1, 0),
    "checkpoint": jax.checkpoint(lambda v: nn.relu(v) * spike(v)),
    "checkpoint with a policy": jax.checkpoint(
        lambda v: nn.relu(v @ v.T) @ v, policy=jax.checkpoint_policies.dots_saveable
    ),
    "jit": jax.jit(lambda v: nn.relu(v) + jnp.ones(H, v.dtype)),
    "surrogate": lambda v: spike(v) - 0.2 * v,
    "nested rules": lambda v: gated(v, 0.5 * v[:, ::-1]),
    "rule with a zero": lambda v: gated(v, lax.stop_gradient(v)),
    "rule with an integer": lambda v: v / (1 + counted(v)[0] + counted(v)[1]),
    "rule under vmap": lambda v: jax.vmap(gated, (1, None), 1)(v, v[:, 1]),
    "custom_vmap": lambda v: v + doubled(lax.stop_gradient(v)),  # it has no reverse mode
    "cholesky": lambda v: v @ jnp.linalg.cholesky(matrix(v)) / 3,
    "solve_triangular": lambda v: jax.scipy.linalg.solve_triangular(matrix(v), v.T, lower=True).T,
    "solve": lambda v: jnp.linalg.solve(matrix(v), v.T).T,
    "cg": lambda v: jax.scipy.sparse.linalg.cg(lambda u: u @ matrix(v), v, maxiter=5)[0],
    "eigh": lambda v: v * jnp.linalg.eigvalsh(matrix(v) + jnp.diag(jnp.arange(H)))[:, None][:B],
    "dynamic_slice": lambda v: lax.dynamic_slice(
        jnp.tile(v, 2), (0, (v[0, 1] > 0).astype(int)), (B, H)
    ),
    "dynamic_update": lambda v: lax.dynamic_update_slice(v, v[:, :1] ** 2, (0, 1)),
    "gather": lambda v: jnp.take_along_axis(v, jnp.argsort(v, -1), -1),
    "scatter": lambda v: v.at[:, jnp.argmax(v[0])].add(nn.relu(v[:, 1])),
    "scatter_max": lambda v: v.at[:, 0].max(v[:, 1]),
    "conv": lambda v: jax.vmap(lambda u: jnp.convolve(u, jnp.arange(3.0, dtype=u.dtype), "same"))(
        v
    ),
    "einsum": lambda v: jnp.einsum("bi,bj,cj->ci", v, v, v),
    "reduce_window": lambda v: lax.reduce_window(v, -jnp.inf, lax.max, (1, 2), (1, 1), "SAME"),
    "fft": lambda v: jnp.real(jnp.fft.ifft(jnp.fft.fft(v) * (1 + jnp.arange(H)))),
    "slopes inside": slopes_inside,
    "scan inside": scan_inside,
    "tangents of a scan inside": functools.partial(scan_inside, derivative=True),
}
"""What a step does with ``h @ w + x + b``, some entries of which are exactly zero."""

METHODS = (*OF_MAPS, *OF_VECTORS)
INNER = (
    None,
    pb.Sweep(),
    pb.Chunked(2),
    pb.Blelloch(),
    pb.Associative(),
    pb.CyclicReduction(),
)


def step_of(names, p, h, x):
    """One function after the other, in one step: programs are what takes time here."""
    for name in names:
        h = jnp.tanh(FUNCTIONS[name](1.5 * h @ p["w"] + p["b"] + x)) + 0.1 * h
    return h, {"h": h, "mean": nn.relu(h).mean()}


def with_key(p, carry, x):
    h, key, k = carry
    key, own = jax.random.split(key)
    drop = jax.random.bernoulli(own, 0.7, h.shape)
    h = jnp.where(drop & (k % 3 != 1), nn.relu(h @ p["w"] + x) + 0.2 * h, 0.5 * h)
    return (h, key, k + 1), (nn.softplus(h), k)


KEYS = ("keys and integers",)
GROUPS = (*(tuple(FUNCTIONS)[k::8] for k in range(8)), KEYS)


def case(names, dtype):
    """``(step, params, carry, xs)``."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    at_kink = jnp.array([0.0, 1, 1], dtype)
    p = {"w": draw(H, H) * at_kink / 2, "b": draw(H) * at_kink}
    h, xs = draw(B, H), draw(LENGTH, B, H) * at_kink
    if names == KEYS:
        return with_key, p, (h, jax.random.key(3), 0), xs
    return functools.partial(step_of, names), p, h, xs


def derivatives(scan, step, kinds):
    """A function of (params, carry, xs) that takes all of these derivatives."""
    found = modes(scan, step)

    def mapped(p, carry, xs):
        each = lambda s: found["gradient"](p, carry, s * xs)  # noqa: E731
        return jax.vmap(each)(jnp.array([1, 0.5], xs.dtype))

    found["vmap"] = mapped
    return jax.jit(lambda *args: [found[kind](*args) for kind in kinds])


@functools.cache
def reference(names, dtype, kinds):
    step, *args = case(names, dtype)
    return derivatives(lax.scan, step, kinds)(*args)


def check(names, method, inner, dtype, kinds=("gradient", "jvp")):
    """Compares with `lax.scan` on one device."""
    step, p, carry, xs = case(names, dtype)
    mesh = line_mesh(DEVICES)
    solver = pb.Sharded("time", mesh, method=method, inner=inner)
    scan = functools.partial(pb.scan, solver=solver)
    got = derivatives(scan, step, kinds)(p, carry, placed(xs, mesh))
    want = reference(names, dtype, kinds)
    tolerance = 10 * TOLERANCE[jnp.dtype(dtype).name]
    where = {"case": f"{names}, {method}, {inner}", "mode": str(kinds)}
    assert_derivatives_close(float_leaves(got), float_leaves(want), tolerance, **where)


def check_all(cells, dtype, **options):
    """Checks every cell of (group, method, inner), and tells all that failed."""
    failed = []
    for group, method, inner in cells:
        try:
            check(GROUPS[group], METHODS[method], INNER[inner], dtype, **options)
        except Exception as error:
            told = (str(error).strip().splitlines() or [""])[0][:300]
            where = f"{GROUPS[group]}, {METHODS[method]}, {INNER[inner]}"
            failed.append(f"{where}: {type(error).__name__}: {told}")
    print(f"{len(cells) - len(failed)} of {len(cells)} cells are right")
    assert not failed, "\n".join(failed)
