"""What `explain` says of native loops is what the lowered programs have."""

import re

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb

pytest.importorskip("llvmlite")

W = 0.1 * jax.random.normal(jax.random.key(0), (5, 5))
INIT, XS = jnp.zeros((2, 5)), jnp.ones((7, 2, 5))


def _elman(h, x):
    h = jnp.tanh(h @ W + x)
    return h, h


def _sorted(h, x):
    h = jnp.tanh(jnp.sort(h @ W) + x)
    return h, h


def _counted(h, x):
    h, count = h
    return (jnp.tanh(h @ W + x) * (1 + count), count), h


def _kinked(h, x):
    h = jax.nn.relu(h @ W + x) - 0.1 * jnp.abs(x - h)
    return h, h


STEPS = {
    "elman": (_elman, INIT),
    "kinked": (_kinked, INIT),
    "sorted": (_sorted, INIT),
    "counted": (_counted, (INIT, 0)),
    "replaced": (lambda h, x: (jnp.sin(x), h * x), INIT),
}
WAYS = {
    "native": {"solver": pb.Sweep(native=True)},
    "keeping": {"solver": pb.Sweep(native=True, recompute=False)},
    "fused": {"forward": "fused"},
    "fused, a tree": {"forward": "fused", "solver": pb.Blelloch()},
}


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("step", STEPS)
def test_what_is_told_is_what_is_lowered(step, how):
    f, init = STEPS[step]
    try:
        found = pb.explain(f, init, XS, **how)
    except NotImplementedError:
        assert "forward" in how  # which says why not, before anything is run
        return

    def loss(xs):
        return pb.scan(f, init, xs, **how)[1].sum()

    texts = [jax.jit(run).lower(XS).as_text() for run in (loss, jax.grad(loss))]
    calls = [set(re.findall(r"parscan_bp_\w+", text)) for text in texts]
    told = str(found.native)
    assert ("values native" in told) == bool(calls[0])
    assert ("derivatives native" in told) == (len(calls[1]) > len(calls[0]))
    assert ("derivatives" in told) == (how.get("solver") != pb.Blelloch())
    if "derivatives" in told:
        every = "values native, derivatives native" in told
        assert every == ("stablehlo.while" not in texts[1])


def test_nothing_is_told_where_nothing_is_asked_for():
    assert pb.explain(_elman, INIT, XS, solver=pb.Sweep()).native is None


@jax.custom_vjp
def _ruled(h):
    return h


_ruled.defvjp(lambda h: (h, None), lambda _, ct: (ct,))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, r"^forward='fused': .*; forward='exact' runs such"),
        (
            {"solver": pb.Blelloch()},
            r"^solver=Blelloch\(\), forward='fused': .*; solver=None, forward='exact' runs such",
        ),
        ({"solver": pb.Sweep(otherwise="lax")}, r"^forward='fused': .*; forward='exact' runs such"),
    ],
)
def test_what_would_run_a_step_with_a_rule_of_its_own(how, words):
    step = lambda h, x: (_ruled(jnp.tanh(h + x)), h)  # noqa: E731
    with pytest.raises(NotImplementedError, match=words):
        pb.scan(step, INIT, XS, forward="fused", **how)


def test_a_scan_inside_is_named():
    def step(h, x):
        return pb.scan(lambda a, b: (jnp.tanh(a + b), None), h, x[None], solver=pb.Sweep())[0], h

    with pytest.raises(NotImplementedError, match="the step contains a scan of parscan_bp;"):
        pb.scan(step, INIT, XS, forward="fused")
