"""`replace_scans` around programs that somebody else has written: equal values and derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import together
from tests.within.derivatives_of import derivatives_of, loss_of, slopes_of, slopes_of_rows

XS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))
A = jnp.asarray([0.3, -0.5, 0.8])


def _rnn(a, xs):
    return lax.scan(lambda h, x: (jnp.tanh(a * h + x), jnp.sin(h)), a, xs)


def _nested(a, xs):
    def step(h, x):
        inner = lax.fori_loop(0, 3, lambda k, v: jnp.sin(a * v) + k, h)
        return jnp.tanh(inner + x), inner

    return lax.scan(step, a, xs, reverse=True)


def _in_cond(a, xs):
    return lax.cond(a[0] > 0, lambda a: _rnn(a, xs), lambda a: _rnn(-a, xs), a)


def _in_switch_of_a_loop(a, xs):
    def body(k, a):
        return lax.switch(k % 2, [lambda a: _rnn(a, xs)[0], lambda a: _rnn(2 * a, xs)[0]], a)

    return lax.fori_loop(0, 3, body, a)


def _checkpointed(a, xs):
    policy = jax.checkpoint_policies.dots_saveable
    return jax.checkpoint(lambda a: _rnn(a, xs), policy=policy)(a)


def _jitted(a, xs):
    return jax.jit(_rnn)(jax.jit(lambda a: jnp.sin(_rnn(a, xs)[0]))(a), xs)


@jax.custom_jvp
def _ruled(a, xs):
    return _rnn(a, xs)[0]


@_ruled.defjvp
def _(primals, tangents):
    return jax.jvp(lambda a, xs: _rnn(a, xs)[0] * 2, primals, tangents)


def _mapped(a, xs):
    return jax.vmap(lambda a: _rnn(a, xs), axis_name="i")(jnp.stack([a, 2 * a]))


def _constants(a, xs):
    weights = jnp.asarray([[0.1, 0.2, 0.3]] * 3)
    step = jax.jit(lambda h, x: (jnp.tanh(weights @ h + a * x), weights[1] * h))
    return jax.jit(lambda a: lax.scan(step, a, xs + weights[0]))(a)


def _no_inputs(a, xs):
    return lax.scan(lambda h, _: (jnp.sin(a * h), (h, None)), xs[0], None, length=4)


def _filled(a, xs):
    def body(k, state):
        h, rows = state
        h = jnp.tanh(a * h + xs[k])
        return h, rows.at[k].set(h)

    return lax.fori_loop(0, 6, body, (a, jnp.zeros_like(xs)))


PROGRAMS = [
    _rnn,
    _nested,
    _in_cond,
    _in_switch_of_a_loop,
    _checkpointed,
    _jitted,
    _ruled,
    _mapped,
    _constants,
    _no_inputs,
    _filled,
]


# Each of the named ones in another way: both in all ways took three times as long.
WAYS = {None: derivatives_of, pb.Sweep(): slopes_of, pb.Blelloch(): slopes_of_rows}


@pytest.mark.parametrize("f", PROGRAMS)
def test_values_and_derivatives_are_those_of_the_program(f, request):
    def case(f):
        every = [(way, pb.replace_scans(f, solver=solver)) for solver, way in WAYS.items()]
        return lambda *args: [
            derivatives_of(f, *args),
            *(way(g, *args) for way, g in every),
        ], (A, XS)

    expected, *made = together(request, case)
    wanted = expected, expected[:2], expected[2]
    for solver, *both in zip(WAYS, made, wanted, strict=True):
        for have, want in zip(*map(jax.tree.leaves, both), strict=True):
            np.testing.assert_allclose(have, want, rtol=2e-4, atol=2e-5, err_msg=str(solver))
            assert (have.dtype, have.shape) == (want.dtype, want.shape)


@pytest.mark.parametrize("f", [_nested, _in_switch_of_a_loop, _ruled, _filled])
def test_values_to_the_last_bit(f):
    got = pb.replace_scans(f, solver=pb.Sweep())(A, XS)
    for have, want in zip(jax.tree.leaves(got), jax.tree.leaves(f(A, XS)), strict=True):
        np.testing.assert_array_equal(have, want)
        assert have.weak_type == want.weak_type


def test_it_is_traced_once():
    count = []

    @pb.replace_scans
    def f(a, xs, *, twice):
        count.append(twice)
        return _rnn(2 * a if twice else a, xs)[0].sum()

    for _ in range(3):
        for g in (f, jax.grad(f)):
            jax.eval_shape(functools.partial(g, twice=True), A, XS)
    assert count == [True]
    assert f(A, XS, twice=False) != f(A, XS, twice=True)
    assert count == [True, False]
    assert f.__name__ == "f"


def test_a_function_that_closes_over_what_is_differentiated():
    def loss(a, replace):
        return loss_of(replace(lambda xs, _: _rnn(a, xs)))(XS, None)

    slopes = [jax.grad(functools.partial(loss, replace=r)) for r in (pb.replace_scans, lambda f: f)]
    got, want = jax.jit(lambda a: [slope(a) for slope in slopes])(A)
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_what_is_returned_beside_arrays_is_as_it_was():
    f = lambda a, name: {"last": _rnn(a, XS)[0], "name": name, "act": jnp.tanh, "n": 3}  # noqa: E731
    for _ in range(2):
        got = pb.replace_scans(f)(A, "some")
        assert (got["name"], got["act"], got["n"]) == ("some", jnp.tanh, 3)
        np.testing.assert_array_equal(got["last"], f(A, "some")["last"])


def test_named_scopes_stay():
    def f(a, xs):
        with jax.named_scope("outer scope"):
            return jnp.sin(_rnn(a, xs)[0])

    for solver in (None, pb.Sweep()):
        program = jax.jit(pb.replace_scans(f, solver=solver)).lower(A, XS)
        assert program.as_text(debug_info=True).count("outer scope") > 3


def test_donated_arguments_are_donated():
    own = jax.jit(lambda a, xs: _rnn(a, xs)[0], donate_argnums=0)
    for f in (pb.replace_scans(own), jax.jit(pb.replace_scans(own), donate_argnums=0)):
        given = jnp.array(A)
        f(given, XS)
        assert given.is_deleted()


def test_a_collective_along_a_mapped_axis():
    def f(a):
        mean = lambda h: lax.pmean(h, "i")  # noqa: E731
        return lax.scan(lambda h, x: (jnp.tanh(a * h + mean(h) + x), None), a, XS)[0].sum()

    rows, both = np.stack([A, 0.5 * A]), (pb.replace_scans(f), f)
    got, want = jax.jit(lambda rows: [jax.vmap(jax.grad(g), axis_name="i")(rows) for g in both])(
        rows
    )
    np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("check_vma", [False, True])
def test_inside_of_shard_map(check_vma):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(
        lambda a, xs: lax.psum(_rnn(a, xs)[0], "d"),
        mesh=mesh,
        in_specs=(spec("d"), spec()),
        out_specs=spec(),
        check_vma=check_vma,
    )
    ours = pb.replace_scans(mapped, solver=pb.Sweep())
    assert "call_with_rule" in str(jax.make_jaxpr(ours)(A, XS))
    got, want = (jax.jit(jax.value_and_grad(loss_of(f)))(A, XS) for f in (ours, mapped))
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4)


def _total(a, xs):
    return lax.psum(_rnn(a, xs)[0], "d")


@jax.custom_jvp
def _ruled_total(a, xs):
    return _total(a, xs)


_ruled_total.defjvp(lambda p, t: jax.jvp(lambda *args: 2 * _total(*args), p, t))

TOTALS = {
    "checkpoint": lambda a, xs: jax.checkpoint(_total)(a, xs),
    "cond": lambda a, xs: lax.cond(
        lax.psum(a[0], "d") > 9, lambda a: _total(-a, xs), lambda a: _total(a, xs), a
    ),
    "jit": lambda a, xs: jax.jit(_total)(a, xs),
    "custom_jvp": _ruled_total,
}


@pytest.mark.parametrize("name", TOTALS)
def test_what_is_the_same_on_all_devices_stays_so(name, request):
    """By its type, without which a result could not leave `jax.shard_map` as one."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    specs = {"in_specs": (spec("d"), spec(None, "d")), "out_specs": spec()}

    def case(name):
        f = jax.shard_map(TOTALS[name], mesh=mesh, **specs)
        each = (f, pb.replace_scans(f, solver=pb.Sweep()))
        return lambda *args: [jax.grad(loss_of(g))(*args) for g in each], (A, XS)

    want, got = together(request, case)
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_effects_are_had_once():
    seen = []

    def step(h, x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        return A[0] * h + x, None

    f = lambda h: lax.scan(step, h, XS[:, 0])[0]  # noqa: E731
    for solver in (None, pb.Sweep()):
        assert pb.replace_scans(f, solver=solver)(0.0) == f(0.0)
    jax.effects_barrier()
    assert len(seen) == 4 * len(XS)


def test_a_mutable_array_is_left():
    def f(a):
        total = jax.new_ref(jnp.zeros_like(a))

        def step(h, x):
            total[...] += h
            return jnp.tanh(a * h + x), None

        return lax.scan(step, a, XS)[0] + total[...]

    np.testing.assert_array_equal(pb.replace_scans(f, solver=pb.Sweep())(A), f(A))


@jax.custom_vjp
def _own_rule(a):
    return _rnn(a, XS)[0]


_own_rule.defvjp(lambda a: (_own_rule(a), None), lambda _, ct: (100 * ct,))


def test_a_rule_of_the_users_is_kept():
    loss = loss_of(lambda a, _: _own_rule(a))
    both = pb.replace_scans(loss, solver=pb.Sweep()), loss
    np.testing.assert_array_equal(*jax.jit(lambda a: [jax.grad(g)(a, None) for g in both])(A))


def _two(a, xs):
    first = lax.scan(lambda h, x: (jnp.tanh(a * h + x), None), a, xs)[0]
    return lax.while_loop(lambda h: h[0] < 3, lambda h: jnp.abs(h) + 1, lax.fori_loop(
        0, 4, lambda k, h: jnp.sin(a * h) + k, first))  # fmt: skip


def _solved(f, *args):
    return str(jax.make_jaxpr(f)(*args)).count("call_with_rule[")


def test_only_some():
    scans = pb.explain_within(_two, A, XS).scans
    for only in (0, scans[0].source, [scans[0].source], (0, 0)):
        assert _solved(pb.replace_scans(_two, solver=pb.Sweep(), only=only), A, XS) == 1
    assert _solved(pb.replace_scans(_two, solver=pb.Sweep(), only=(0, 1)), A, XS) == 2
    assert _solved(pb.replace_scans(_two, solver=pb.Sweep(), only=()), A, XS) == 0


def _refused(h, x):
    return lax.while_loop(lambda v: v[0] < 1, lambda v: 2 * jnp.abs(v) + 1, h) * A + x, None


def test_what_a_named_solver_refuses():
    f = lambda a, xs: lax.scan(_refused, a, xs)[0]  # noqa: E731
    got = pb.replace_scans(f, solver=pb.Blelloch())(A, XS)
    np.testing.assert_array_equal(got, f(A, XS))
    with pytest.raises(NotImplementedError, match="while") as error:
        pb.replace_scans(f, solver=pb.Blelloch(), otherwise="raise")(A, XS)
    assert "number 0, at test_replace_scans.py:" in "".join(error.value.__notes__)


@pytest.mark.parametrize(
    "options, error, match",
    [
        (
            {"only": "else.py:3"},
            ValueError,
            r"only: got 'else.py:3'; the function has 0 at test_re",
        ),
        ({"only": 7}, ValueError, "only: got 7; the function has 0 at"),
        ({"only": 1.5}, TypeError, "only: got 1.5; the number of a scan or"),
        ({"only": True}, TypeError, "only: got True"),
        ({"otherwise": "keep"}, ValueError, "otherwise: got 'keep'; 'lax' or 'raise' is wanted"),
        ({"solver": "sweep"}, TypeError, "solver"),
        ({"memory_limit": 1.5}, TypeError, "memory_limit"),
        ({"memory_limit": 1}, ValueError, "memory_limit: got 1 bytes"),
    ],
)
def test_options_that_are_none(options, error, match):
    with pytest.raises(error, match=match):
        pb.replace_scans(_rnn, **{"solver": pb.Sweep(), **options})(A, XS)


def test_integers_of_another_precision():
    def f(rows):
        with jax.enable_x64(True):
            return lax.fori_loop(0, 6, lambda k, u: u.at[k].set(k * 0.5), rows)

    np.testing.assert_array_equal(pb.replace_scans(f)(XS), f(XS))
    (scan,) = pb.explain_within(f, XS).scans
    assert jax.config.jax_enable_x64 or "64 bits" in scan.stays


def test_without_jit():
    with jax.disable_jit():
        got = pb.replace_scans(_filled, solver=pb.Sweep())(A, XS)
    for have, want in zip(jax.tree.leaves(got), jax.tree.leaves(_filled(A, XS)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_what_is_no_function():
    with pytest.raises(TypeError, match="f: got ArrayImpl; a function is wanted"):
        pb.replace_scans(A)
