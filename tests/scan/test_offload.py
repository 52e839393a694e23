"""Carries that the host keeps: ``memory_limit=MemoryLimit(bytes, offload=True)``."""

import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.scan.storage import Storage, StoredBytes, within_limit
from tests import compiler_cache
from tests.kernels import sm90
from tests.quickly import jit_quickly

DTYPE = jnp.zeros(()).dtype
H, T = 8, 90
W = jnp.asarray(np.random.default_rng(0).normal(size=(H, H)) / 3, DTYPE)
XS = jnp.asarray(np.random.default_rng(1).normal(size=(T, H)) / 2, DTYPE)
LIMIT = pb.MemoryLimit(500 * DTYPE.itemsize, offload=True)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """A CPU takes the same programs, and its devices have a memory of that name."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def step(w):
    """With a key and a counter in the carry, and an output."""

    def run(carry, x):
        h, count, key = carry
        noise = 0.01 * jax.random.normal(jax.random.fold_in(key, count), (H,), DTYPE)
        h = jnp.tanh(h @ w + x + noise)
        return (h, count + 1, key), jnp.sin(h[:2])

    return run


def loss(w, xs, scan=pb.scan, **how):
    (h, *_), ys = scan(step(w), (jnp.ones(H, DTYPE), jnp.int32(0), jax.random.key(3)), xs, **how)
    return jnp.sum(h**2) + jnp.sum(jnp.cos(ys))


# The planner


def test_one_level_meets_any_limit_of_a_few_steps():
    costs = StoredBytes(64, 64, 0, 0, lambda n: 0)
    for length in (10**2, 10**4, 10**6):
        found = within_limit(length, costs, pb.MemoryLimit(64 * 20, offload=True))
        assert len(found.sizes) == 1 and found.bytes <= 64 * 20
        assert found.host_bytes == length // found.sizes[0] * 64
        assert found.sizes[0] > 8  # as long as may be: fewer copies
    assert len(within_limit(10**6, costs, pb.MemoryLimit(64 * 100)).sizes) > 1


def test_what_fits_is_not_offloaded():
    costs = StoredBytes(64, 64, 0, 0, lambda n: 0)
    found = within_limit(100, costs, pb.MemoryLimit(64 * 100, offload=True))
    assert found == Storage(100, costs, (), True) and not found.is_offloaded
    assert found.host_bytes == 0 and "host" not in str(found)


def test_carries_of_steps_left_over_are_the_device_s():
    costs = StoredBytes(100, 1, 0, 0, lambda n: 0)
    assert costs.of(25, (10,)) == 3 * 100 + 10
    assert costs.of(25, (10,), offload=True) == 3 * 100 + 10
    assert costs.of(45, (10,), offload=True) == 3 * 100 + 10
    assert Storage(45, costs, (10,), True).host_bytes == 400


# Values and derivatives

MODES = {
    "gradient": lambda f: jax.grad(f, (0, 1))(W, XS),
    "tangent": lambda f: jax.jvp(f, (W, XS), (W, XS))[1],
    "product": lambda f: jax.jvp(jax.grad(f), (W, XS), (W, XS))[1],
    "second": lambda f: jax.grad(lambda w: jnp.sum(jax.grad(f)(w, XS) ** 2))(W),
    "batch": lambda f: jax.vmap(jax.grad(f), (0, None))(jnp.stack([W, -W]), XS),
    "reverse": lambda f: jax.grad(lambda w: f(w, XS, reverse=True))(W),
}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "solver", [pb.Sweep(), pytest.param(pb.Blelloch(), marks=pytest.mark.slow)], ids=str
)
def test_every_mode(solver):
    how = {"memory_limit": LIMIT, "solver": solver}
    if solver != pb.Sweep():
        how["memory_limit"] = pb.MemoryLimit(3000 * DTYPE.itemsize, offload=True)
    init = jnp.ones(H, DTYPE), jnp.int32(0), jax.random.key(3)
    assert "of the host" in pb.explain(step(W), init, XS, **how).stored

    @jit_quickly
    def both():
        ours = lambda *args, **more: loss(*args, **more, **how)  # noqa: E731
        theirs = lambda *args, **more: loss(*args, **more, scan=lax.scan)  # noqa: E731
        return {mode: (of(ours), of(theirs)) for mode, of in MODES.items()}

    for mode, (got, want) in both().items():
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            scale = 1 + np.abs(b).max()
            tolerance = 5e-11 if DTYPE == jnp.float64 else 1e-3
            np.testing.assert_allclose(a / scale, b / scale, atol=tolerance, err_msg=mode)


def on_host(jaxpr):
    return set(re.findall(r"\w+<host>\[[\d,]*\]", str(jaxpr)))


def _own_step():
    """Of which nothing is linearised."""

    @jax.custom_vjp
    def own(c):
        return jnp.sin(c)

    own.defvjp(lambda c: (own(c), c), lambda c, ct: (3 * ct * jnp.cos(c),))
    return lambda w: lambda c, x: (own(c @ w + x), None)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "made", [lambda w: lambda c, x: (jnp.tanh(c @ w + x), None), _own_step()], ids=["own", "lax"]
)
def test_the_carries_of_all_stretches_are_the_host_s(made):
    """Stacked there by the loop of the values, in the program for a GPU, too."""
    init = jnp.ones(H, DTYPE)
    how = {"memory_limit": pb.MemoryLimit(300 * DTYPE.itemsize, offload=True)}
    told = pb.explain(made(W), init, XS, **how).stored
    size = int(re.search(r"stretch of (\d+) steps", told)[1])
    gradient = jax.jit(jax.grad(lambda w: jnp.sum(pb.scan(made(w), init, XS, **how)[0] ** 2)))
    traced = gradient.trace(W)
    kind = {"float32": "f32", "float64": "f64"}[DTYPE.name]
    assert f"{kind}<host>[{T // size},{H}]" in on_host(traced.jaxpr)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    placed = re.findall(r'annotate_device_placement.*_xla_buffer_placement = "(\w+)"', text)
    assert set(placed) == {"device", "pinned_host"}


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="jax_cuda13_plugin is not installed: pip install 'parscan_bp[cuda]'",
)
def test_a_compiled_program_has_what_was_told():
    """Of the device and of the host; and a copy each way, beside what else runs."""
    wide, length = 4096, 1000
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((wide,), (length,))]
    first = jnp.ones(wide, jnp.float32)
    made = lambda w: lambda c, x: (jnp.tanh(c * w + x), None)  # noqa: E731
    for limit in (2_000_000, 600_000):
        how = {"solver": pb.Sweep(), "memory_limit": pb.MemoryLimit(limit, offload=True)}
        total = lambda w, xs, how=how: jnp.sum(pb.scan(made(w), first, xs, **how)[0] ** 2)  # noqa: E731
        told = pb.explain(made(first), first, jnp.ones(length, jnp.float32), **how).stored
        host = int(re.search(r"and ([\d,]+) of the host", told)[1].replace(",", ""))
        with compiler_cache.switched_off():
            compiled = sm90.compiled(jax.grad(total), shapes)
        copies = [line for line in compiled.as_text().splitlines() if "S(5)" in line]
        starts = [re.search(r"([a-z-]+)-start", line) for line in copies if "copy(" not in line]
        names = [found[1] for found in starts if found and " = ((" in found.string]
        assert sorted(names) == ["dynamic-slice", "dynamic-update-slice"]
        used = compiled.memory_analysis()
        assert used.host_temp_size_in_bytes == host
        assert used.temp_size_in_bytes <= limit


# Mistakes


def test_a_cpu_has_one_memory():
    with pytest.raises(NotImplementedError, match=r"offload=True.*; on a CPU the host's memory is"):
        loss(W, XS, memory_limit=LIMIT)
    with pytest.raises(NotImplementedError, match="on a CPU"):
        pb.explain(step(W), (XS[0], jnp.int32(0), jax.random.key(3)), XS, memory_limit=LIMIT)


def test_a_device_without_such_a_memory_is_refused(monkeypatch, as_on_a_gpu):
    class Device:
        def addressable_memories(self):
            return []

    monkeypatch.setattr(jax, "devices", lambda: [Device()])
    with pytest.raises(NotImplementedError, match="pinned_host is wanted"):
        loss(W, XS, memory_limit=LIMIT)


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda: pb.MemoryLimit(0), ValueError, "bytes: got 0"),
        (lambda: pb.MemoryLimit(1e6), TypeError, "bytes: got 1000000.0"),
        (lambda: pb.MemoryLimit(10, offload=1), TypeError, "offload: got 1"),
        (
            lambda: pb.while_loop(lambda c: c < 9.0, lambda c: c + 1, 0.0, memory_limit=LIMIT),
            NotImplementedError,
            "memory_limit: got MemoryLimit.*a while loop keeps its carries on the device",
        ),
        (
            lambda: pb.autotune(step(W), (jnp.ones(H, DTYPE), 0, 0), XS, memory_limit=LIMIT),
            NotImplementedError,
            "memory_limit: got MemoryLimit.*candidates are raced with all they store",
        ),
    ],
)
def test_mistakes(made, error, words):
    with pytest.raises(error, match=words):
        made()


def test_without_offload_it_is_a_number():
    limit = 1700 * DTYPE.itemsize
    grads = [
        jax.grad(loss)(W, XS, memory_limit=one, solver=pb.Sweep())
        for one in (limit, pb.MemoryLimit(limit))
    ]
    np.testing.assert_array_equal(*grads)
