"""`parscan_bp.linen` against `flax.linen`: values bit for bit, collections, gradients."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax_cases import FLOAT, HIDDEN, LENGTHS, OPTIONS, TIME, assert_close, inputs, scalar

import parscan_bp as pb
import parscan_bp.linen
from tests.family import compare_outputs

CELLS = (nn.SimpleCell, nn.GRUCell, nn.MGUCell, nn.LSTMCell, nn.OptimizedLSTMCell)
FAST = {"SimpleCell-time_major", "LSTMCell-plain", "OptimizedLSTMCell-seq_lengths"}
SOLVER = pb.Sweep(chunk=4)
SLOW = pytest.mark.slow


def _grid():
    for kind in CELLS:
        for name in OPTIONS:
            case = f"{kind.__name__}-{name}"
            yield pytest.param(kind, name, marks=() if case in FAST else SLOW, id=case)


def _layer(library, kind, name, **keywords):
    def rnn():
        return library.RNN(kind(HIDDEN, param_dtype=FLOAT), **keywords)

    return library.Bidirectional(rnn(), rnn()) if name == "bidirectional" else rnn()


def _same(theirs, ours, variables, call, case, **how):
    """Outputs, changed collections, and gradients by parameters and inputs."""
    x = inputs(call)
    got, want = (m.apply(variables, x, **call, **how) for m in (ours, theirs))
    compare_outputs(got, want, case=case)

    def grad(model):
        def loss(params, x):
            return scalar(model.apply({**variables, "params": params}, x, **call, **how))

        return jax.grad(loss, (0, 1))(variables["params"], x)

    assert_close(grad(ours), grad(theirs), case=case)


@pytest.mark.parametrize(("kind", "name"), list(_grid()))
def test_parameters_values_and_gradients_are_those_of_flax(kind, name):
    theirs, ours = _layer(nn, kind, name), _layer(pb.linen, kind, name, solver=SOLVER)
    call = OPTIONS[name]
    variables = theirs.init(jax.random.key(0), inputs(call), **call)
    compare_outputs(ours.init(jax.random.key(0), inputs(call), **call), variables)
    _same(theirs, ours, variables, call, f"{kind.__name__}, {name}")


@pytest.mark.parametrize("name", ["RNN", "Bidirectional"])
@pytest.mark.parametrize("method", ["__init__", "__call__"])
def test_signatures_are_those_of_flax_and_what_is_beyond(name, method):
    theirs, ours = (getattr(getattr(m, name), method) for m in (nn, pb.linen))
    theirs, ours = (inspect.signature(f).parameters for f in (theirs, ours))
    beyond = {
        "__init__": {"RNN": ["solver", "forward", "memory_limit", "report", "custom_vjp"]},
        "__call__": {name: ["mask", "reset"]},
    }
    assert sorted(ours) == sorted([*theirs, *beyond[method].get(name, [])])
    for key, parameter in theirs.items():
        assert (ours[key].default, ours[key].kind) == (parameter.default, parameter.kind), key


BAD_CALLS = {
    "carry of another shape": {"initial_carry": jnp.zeros((2, 2))},
    "carry of another structure": {"initial_carry": (jnp.zeros(2), jnp.zeros(2))},
    "unknown option": {"lengths": LENGTHS},
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_mistakes_are_reported_as_flax_reports_them(call):
    variables = nn.RNN(nn.GRUCell(HIDDEN, param_dtype=FLOAT)).init(jax.random.key(0), inputs())
    raised = []
    for library in (nn, pb.linen):
        with pytest.raises(Exception) as info:
            library.RNN(nn.GRUCell(HIDDEN, param_dtype=FLOAT)).apply(variables, inputs(), **call)
        raised.append((info.type, str(info.value).split("\n")[0].split("(")[0]))
    assert raised[0] == raised[1]


class Stateful(nn.RNNCellBase):
    """A cell of a user: counts its steps, drops units, keeps statistics, sows."""

    num_feature_axes = 1

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros((*input_shape[:-1], HIDDEN), FLOAT)

    @nn.compact
    def __call__(self, carry, x):
        steps = self.variable("counts", "steps", lambda: jnp.zeros((), int))
        if not self.is_initializing():
            steps.value += 1
        dense = nn.Dense(HIDDEN, use_bias=False, param_dtype=FLOAT)
        h = dense(jnp.concatenate([x, carry], axis=-1))
        h = nn.BatchNorm(use_running_average=False, param_dtype=FLOAT)(h)
        self.sow("intermediates", "h", h)
        h = nn.Dropout(0.5, deterministic=False)(jnp.tanh(h))
        return h, h * steps.value


def test_collections_and_random_streams_do_what_they_do_in_flax():
    options = {
        "variable_carry": ("counts", "batch_stats"),
        "variable_axes": {"intermediates": 0},
        "split_rngs": {"params": False, "dropout": True},
    }
    theirs, ours = nn.RNN(Stateful(), **options), pb.linen.RNN(Stateful(), solver=SOLVER, **options)
    carry, x = jnp.zeros((3, HIDDEN), FLOAT), inputs()[:, 0]
    keys = dict(zip(("params", "dropout"), jax.random.split(jax.random.key(0)), strict=True))
    variables = Stateful().init(keys, carry, x)
    variables = {k: {"cell": v} for k, v in variables.items() if k != "intermediates"}
    # Flax makes float32 statistics, which a float64 input turns into float64 ones.
    stats = jax.tree.map(lambda a: a.astype(FLOAT), variables["batch_stats"])
    variables = {**variables, "batch_stats": stats}
    how = {"mutable": ["counts", "batch_stats", "intermediates"], "rngs": keys}
    _same(theirs, ours, variables, {"return_carry": True}, "stateful", **how)
    _, changed = ours.apply(variables, inputs(), **how)
    assert changed["counts"]["cell"]["steps"] == TIME


class Model(nn.Module):
    """A larger model: the layer checkpointed, mapped over heads, and dropout after it."""

    library: object
    solver: object = None

    @nn.compact
    def __call__(self, x):
        keywords = {} if self.library is nn else {"solver": self.solver}
        lifted = nn.vmap(
            nn.remat(self.library.RNN),
            in_axes=None,
            out_axes=0,
            axis_size=2,
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        cell = nn.SimpleCell(HIDDEN, param_dtype=FLOAT, parent=None)
        heads = lifted(cell, **keywords, name="heads")(nn.Dense(3, param_dtype=FLOAT)(x))
        return nn.Dropout(0.5, deterministic=False)(heads)


@SLOW
def test_nested_in_vmap_remat_and_jit_of_a_larger_model():
    x, keys = inputs(), {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    theirs, ours = Model(nn), Model(pb.linen, SOLVER)
    variables = theirs.init(keys, x)
    compare_outputs(ours.init(keys, x), variables)

    def grad(model):
        def loss(variables):
            return scalar(model.apply(variables, x, rngs={"dropout": jax.random.key(2)}))

        return jax.jit(jax.value_and_grad(loss))(variables)

    assert_close(grad(ours), grad(theirs))


def test_a_jitted_call_is_traced_once():
    calls = []

    class Traced(nn.SimpleCell):
        @nn.compact
        def __call__(self, carry, x):
            calls.append(None)
            return super().__call__(carry, x)

    rnn = pb.linen.RNN(Traced(HIDDEN, param_dtype=FLOAT), solver=SOLVER)
    variables = rnn.init(jax.random.key(0), inputs())
    grad = jax.jit(jax.grad(lambda v, x: scalar(rnn.apply(v, x))))
    grad(variables, inputs())
    before = len(calls)
    grad(variables, inputs(seed=1))
    assert before and len(calls) == before


SCALE = [1.0]


class Reading(nn.RNNCellBase):
    """A cell of a user that reads a Python value."""

    @property
    def num_feature_axes(self):
        return 1

    def initialize_carry(self, rng, input_shape):
        return jnp.zeros(input_shape, FLOAT)

    def __call__(self, carry, x):
        h = jnp.tanh(SCALE[0] * carry + x)
        return h, h


def test_python_values_that_a_cell_reads_are_those_of_the_call():
    for SCALE[0] in (1.0, 0.5):
        got, want = (library.RNN(Reading()).apply({}, inputs()) for library in (pb.linen, nn))
        compare_outputs(got, want, case=f"scale {SCALE[0]}")
