"""What is told of a parallel forward pass, when it falls back, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.forward import Auto, Forward, Trajectory
from tests.forward.methods import METHODS, by_method
from tests.quickly import jit_quickly

LENGTH = 256
XS = jnp.zeros(LENGTH)


def logistic(rate):
    """x -> rate x (1 - x), chaotic from 3.6 on."""
    return lambda x, u: (rate * x * (1 - x) + u, x)


TO_THE_END = pb.Chunks(8, rounds=8)


def reported(rate, xs=XS, forward=TO_THE_END, **asked):
    forward = dataclasses.replace(forward, **asked)
    return pb.scan(logistic(rate), jnp.float32(0.3), xs, forward=forward, report=True)


@functools.cache
def _program(**options):
    return jit_quickly(functools.partial(reported, **options))


def run(rate, xs=XS, **options):
    return _program(**options)(rate, xs)


@jit_quickly
def exactly(rate, xs=XS):
    return lax.scan(logistic(rate), jnp.float32(0.3), xs)


def test_what_is_told():
    _, ys, report = run(2.5)
    told = report.forward
    assert report.status == told.status == pb.Status.OK and not report.fell_back
    assert told.converged and told.iterations >= 1 and not told.fell_back
    assert 0 <= told.residual <= told.error and told.error + told.floor <= told.tolerance
    np.testing.assert_array_equal(told.states[:-1], ys[1:])
    assert np.isclose(told.tolerance, np.finfo(np.float32).eps ** 0.5)


@pytest.mark.parametrize("rounds", [2, 8])
def test_the_sequential_pass_takes_over(rounds):
    """Whether the method gave up or its result could not be certified."""
    method = pb.Chunks(8, rounds=rounds)
    *got, report = run(3.9, forward=method)
    want = exactly(3.9)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert report.fell_back and report.forward.fell_back and report.status == pb.Status.OK
    assert report.forward.converged == (rounds == 8)
    *left, report = run(3.9, forward=method, fallback=False)
    assert not report.fell_back and report.status == pb.Status.UNCERTIFIED
    assert report.forward.status == pb.Status.UNCERTIFIED
    assert np.abs(left[1] - want[1]).max() > 0.1 or rounds == 8


def test_what_is_not_finite_is_what_it_is_sequentially():
    xs = XS.at[100].set(jnp.nan).at[180].set(jnp.inf)
    *got, report = run(2.5, xs)
    want = exactly(2.5, xs)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert report.status == pb.Status.NON_FINITE and report.fell_back
    *_, report = run(2.5, xs, fallback=False)
    assert report.status == report.forward.status == pb.Status.NON_FINITE
    assert np.isnan(report.forward.residual)


def test_one_hard_entry():
    """The others are what they are beside easy ones, bit for bit, and so are their reports."""
    mapped = jit_quickly(jax.vmap(functools.partial(reported, forward=pb.Chunks(8))))
    easy, hard = (mapped(jnp.asarray(r, jnp.float32)) for r in ([2.1, 1.5, 0.5], [2.1, 3.9, 0.5]))
    keep = np.array([0, 2])
    for a, b in zip(jax.tree.leaves(easy), jax.tree.leaves(hard), strict=True):
        np.testing.assert_array_equal(a[keep], b[keep])
    assert easy[2].fell_back.tolist() == [False] * 3
    assert hard[2].fell_back.tolist() == [False, True, False]
    np.testing.assert_allclose(hard[1][1][:40], exactly(3.9)[1][:40], atol=1e-3)


def test_a_finished_entry_is_what_it_is_alone():
    """Whoever is beside it, bit for bit."""
    method = pb.Chunks(8)
    mapped = jit_quickly(jax.vmap(functools.partial(reported, forward=method)))
    together = mapped(jnp.asarray([2.1, 3.9, 0.5], jnp.float32))
    for k, rate in ((0, 2.1), (2, 0.5)):
        alone = mapped(jnp.asarray([rate], jnp.float32))
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(a[k], b[0])


LONG = 4 * LENGTH


def _sequential_passes(jaxpr, within=False):
    """The loops over all steps, one after the other: whether each is in a branch of a choice."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan" and eqn.params["length"] == LONG:
            yield within
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                inner = getattr(inner, "jaxpr", inner)
                yield from _sequential_passes(inner, within or eqn.primitive.name == "cond")


def _is_program(value):
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def test_a_fall_back_is_no_trip_of_those_that_need_none():
    """Alone and in a batch, where the choice is one for all entries."""
    xs = jnp.zeros(LONG)  # the certificate's own loops are shorter
    run = lambda rate: pb.scan(logistic(rate), jnp.float32(0.3), xs, forward=pb.Chunks(8))  # noqa: E731
    for f, rate in ((run, jnp.float32(2)), (jax.vmap(run), jnp.full(3, 2, jnp.float32))):
        passes = list(_sequential_passes(jax.make_jaxpr(f)(rate).jaxpr))
        assert passes and all(passes)


def test_a_looser_tolerance_is_kept():
    _, want = exactly(2.9)
    _, ys, report = run(2.9, tolerance=0.01)
    assert not report.fell_back and np.abs(ys - want).max() <= 0.01 * (1 + want.max())
    assert report.forward.tolerance == np.float32(0.01)
    *_, report = run(2.9, tolerance=1e-9)
    assert report.fell_back  # nothing in float32 is as good


def test_a_report_is_alive_under_every_transformation():
    def value(rate):
        x, _, report = reported(rate)
        return x, report

    def modes(rate):
        return {
            "value": value(rate)[1],
            "grad": jax.grad(value, has_aux=True)(rate)[1],
            "checkpoint": jax.grad(jax.checkpoint(value), has_aux=True)(rate)[1],
            "jvp": jax.jvp(value, (rate,), (1.0,))[0][1],
            "jacrev of grad": jax.jacrev(jax.grad(value, has_aux=True), has_aux=True)(rate)[1],
            "slope": jax.jvp(lambda r: value(r)[1].forward.error, (rate,), (1.0,))[1],
        }

    reports = jit_quickly(modes)(2.5)
    assert reports.pop("slope") == 0
    for mode, report in reports.items():
        assert (report.status, report.fell_back) == (0, False), mode
        assert report.forward.iterations == reports["value"].forward.iterations, mode
        assert report.forward.error < report.forward.tolerance, mode


def test_a_surrogate_slope_does_not_hide_an_error():
    """The certificate reads the derivative that the values have."""

    @jax.custom_jvp
    def flat(x):
        return 3.9 * x * (1 - x)

    flat.defjvp(lambda primals, tangents: (flat(primals[0]), 0.0 * tangents[0]))

    def stopped(x):
        x = lax.stop_gradient(x)
        return 3.9 * x * (1 - x)

    @jit_quickly
    def fell_back():
        how = {"length": LENGTH, "forward": TO_THE_END, "report": True}
        steps = [lambda x, _, f=f: (f(x), x) for f in (flat, stopped)]
        return [pb.scan(step, 0.3, **how)[2].fell_back for step in steps]

    assert all(fell_back())


@pytest.mark.parametrize("certify", ["estimate", "bound"])
def test_both_certificates(certify):
    step = lambda h, u: (jnp.tanh(0.4 * h + u), h)  # noqa: E731
    h, us = jnp.zeros(3), 0.3 * jnp.ones((100, 3))
    how = {"forward": pb.Chunks(4, certify=certify), "report": True}
    _, ys, report = jit_quickly(lambda h: pb.scan(step, h, us, **how))(h)
    assert not report.fell_back and report.forward.error < report.forward.tolerance
    np.testing.assert_allclose(ys, lax.scan(step, h, us)[1], atol=1e-6)


def test_a_bound_names_what_it_does_not_know():
    step = lambda h, u: (jax.nn.relu(0.4 * h + u), h)  # noqa: E731
    with pytest.raises(NotImplementedError, match="max"):
        pb.scan(step, jnp.zeros(3), jnp.ones((20, 3)), forward=pb.Chunks(certify="bound"))
    wide = jnp.zeros(20_000)
    with pytest.raises(ValueError, match="certify: 'bound' forms the Jacobians"):
        pb.scan(
            lambda h, u: (jnp.tanh(h), h), wide, jnp.ones(200), forward=pb.Chunks(certify="bound")
        )


FORWARDS = [
    ("chunk", ValueError, "forward: got 'chunk'"),
    (pb.Chunks, TypeError, r"forward: Chunks is a class; Chunks\(\) is wanted"),
    (pb.Chunks(fallback=False), ValueError, "fallback: False wants report=True"),
]


@pytest.mark.parametrize(("forward", "error", "message"), FORWARDS, ids=str)
def test_what_forward_may_be(forward, error, message):
    with pytest.raises(error, match=message):
        pb.scan(logistic(2.0), 0.3, XS, forward=forward)


OPTIONS = [
    ({"certify": "proof"}, ValueError, "certify: got 'proof'"),
    ({"tolerance": 0.0}, ValueError, "tolerance: got 0.0"),
    ({"tolerance": float("nan")}, ValueError, "tolerance: got nan"),
    ({"tolerance": "tight"}, TypeError, "tolerance: got 'tight'"),
    ({"fallback": 0}, TypeError, "fallback: got 0"),
]


KINDS = (pb.Chunks, pb.Newton, pb.FixedPoint, pb.FrozenActivations, Auto)


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize(("options", "error", "message"), OPTIONS, ids=lambda v: str(v)[:40])
def test_options(method, options, error, message):
    with pytest.raises(error, match=message):
        method(**options)


def test_methods_print_what_was_chosen():
    guess = jnp.zeros((100, 3))
    chosen = pb.Newton("diagonal", guess=guess), pb.FrozenActivations(guess), pb.Chunks()
    assert str(chosen) == "(Newton(jacobian='diagonal'), FrozenActivations(), Chunks())"


@dataclasses.dataclass(frozen=True, repr=False)
class Times(Forward):
    """A method of one's own: x_0 times a factor, at every step."""

    factor: object = 1.0

    def evaluate(self, recurrence, tolerance):
        entry = lambda a: jnp.broadcast_to(self.factor * a, (recurrence.length, *a.shape))  # noqa: E731
        states = jax.tree.map(entry, recurrence.init)
        return Trajectory(states, jnp.asarray(1), jnp.asarray(True))


@dataclasses.dataclass(frozen=True)
class Altered(Times):
    """One that returns something else."""

    alter: object = None

    def evaluate(self, recurrence, tolerance):
        return self.alter(*super().evaluate(recurrence, tolerance))


NO_TRAJECTORY = {
    "nothing": (lambda *made: None, "Trajectory"),
    "states": (lambda states, *rest: states, "Trajectory"),
    "too short": (lambda states, *rest: ([a[1:] for a in states], *rest), r"states of .*\(19,\)"),
    "other dtype": (
        lambda states, *rest: ([a.astype(jnp.float16) for a in states], *rest),
        "states of .*float16.* are wanted",
    ),
    "a flag a step": (
        lambda states, count, flag: (states, count, jnp.ones(7, bool)),
        r"shapes \[\(\), \(7,\)\]",
    ),
}


@pytest.mark.parametrize(("alter", "message"), NO_TRAJECTORY.values(), ids=NO_TRAJECTORY)
def test_a_method_that_makes_no_trajectory_is_named(alter, message):
    with pytest.raises(TypeError, match=f"Altered.evaluate returned.*({message})"):
        pb.scan(logistic(2.0), 0.3, XS[:20], forward=Altered(alter=alter))


class Once(Forward):
    """One that is no dataclass."""

    evaluate = Times.evaluate
    factor = 1.0


def test_options_of_ones_own_method_can_be_hashed():
    run = lambda method: pb.scan(logistic(2.0), 0.3, XS[:20], forward=method)  # noqa: E731
    for factor, named in ((jnp.ones(()), "Array"), ([1.0], "list"), (np.ones(()), "ndarray")):
        with pytest.raises(TypeError, match=rf"forward: Times.factor: got .*{named}.*hashed"):
            run(Times(factor))
    with pytest.raises(TypeError, match=r"forward: Times.factor: got .*Tracer"):
        jax.jit(lambda factor: run(Times(factor)))(1.0)
    for method in (Times(2.0), Once()):
        np.testing.assert_allclose(run(method)[0], lax.scan(logistic(2.0), 0.3, XS[:20])[0])
    assert str((Times(2.0), Once())) == "(Times(factor=2.0), Once())"


@jax.custom_vjp
def one_way(x):
    return jnp.tanh(x)


one_way.defvjp(lambda x: (jnp.tanh(x), x), lambda x, ct: (ct,))


def printing(x, u):
    jax.debug.print("{}", u)
    return jnp.tanh(x), x


STEPS = {
    "an integer": (lambda c, u: ((c[0] + 1, jnp.tanh(c[1] + u)), u), (0, 0.0), "int32|int64"),
    "a key": (
        lambda c, u: (jax.random.split(c)[0], jax.random.normal(c)),
        jax.random.key(0),
        "key",
    ),
    "bfloat16": (lambda h, u: (jnp.tanh(h), h), jnp.bfloat16(0.5), "bfloat16"),
    "complex": (lambda h, u: (0.5j * h, h), jnp.complex64(1), "complex64"),
    "custom_vjp": (lambda h, u: (one_way(h + u), h), 0.0, "custom_vjp_call"),
    "effects": (printing, 0.0, "debug"),
    "while": (
        lambda h, u: (lax.while_loop(lambda v: v < 1.0, lambda v: v + 0.7, h), h),
        0.0,
        "while",
    ),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("solver", [None, pb.Sweep()], ids=str)
def test_steps_that_no_method_takes(name, solver):
    step, init, message = STEPS[name]
    with pytest.raises(NotImplementedError, match=f"forward=.*({message})"):
        pb.scan(step, init, XS[:20], forward="chunks", solver=solver)


@by_method("chunks to the end")
def test_every_option_of_the_loop(name):
    """Integer inputs, outputs of other kinds, keys that are inputs."""

    def step(h, x):
        k, key = x
        h = jnp.tanh(0.5 * h + 0.1 * k + 0.1 * jax.random.normal(key, h.shape))
        return h, (h, k + 1, h > 0, key)

    xs = jnp.arange(33) % 3, jax.random.split(jax.random.key(1), 33)
    for how in ({"reverse": True, "unroll": 2}, {}):
        ours = functools.partial(pb.scan, step, forward=METHODS[name].method, **how)
        got = jit_quickly(ours)(jnp.zeros(4), xs)
        want = lax.scan(step, jnp.zeros(4), xs, **how)
        assert jax.tree.structure(got) == jax.tree.structure(want)
        np.testing.assert_allclose(got[0], want[0], atol=1e-5)
        np.testing.assert_allclose(got[1][0], want[1][0], atol=1e-5)
        np.testing.assert_array_equal(got[1][1], want[1][1])
        same = jax.random.key_data(got[1][3]) == jax.random.key_data(want[1][3])
        assert same.all()


def test_nothing_to_do():
    """Of no steps, or without a carry, the values are those of `lax.scan`."""
    step = functools.partial(lambda h, u: (jnp.tanh(h + u), h))
    assert pb.scan(step, 0.5, XS[:0], forward="chunks")[0] == 0.5
    _, ys = pb.scan(lambda c, u: (c, 2 * u), (), XS, forward="chunks")
    np.testing.assert_array_equal(ys, 2 * XS)
