"""`parscan_bp.nnx` against `flax.nnx`: values bit for bit, state, gradients, transformations."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from flax import errors, nnx
from flax_cases import (
    FLOAT,
    HIDDEN,
    INPUTS,
    OPTIONS,
    TIME,
    assert_close,
    inputs,
    nnx_jit_once,
    scalar,
)

import parscan_bp as pb
import parscan_bp.nnx
from tests.family import compare_outputs

CELLS = (nnx.SimpleCell, nnx.GRUCell, nnx.LSTMCell, nnx.OptimizedLSTMCell)
SLOW = pytest.mark.slow
SOLVERS = (
    None,
    pb.Blelloch(),
    *(
        pytest.param(solver, marks=SLOW)
        for solver in (pb.Chunked(), pb.Associative(), pb.ChunkedCorrections(2))
    ),
)
FAST = {
    "SimpleCell-seq_lengths",
    "GRUCell-keep_order",
    "LSTMCell-time_major",
    "GRUCell-bidirectional",
}


def _cell(kind, seed=0):
    return kind(INPUTS, HIDDEN, dtype=FLOAT, param_dtype=FLOAT, rngs=nnx.Rngs(seed))


def _layer(library, kind, options, **keywords):
    if options != "bidirectional":
        return library.RNN(_cell(kind), **keywords)
    rnns = [library.RNN(_cell(kind, seed), **keywords) for seed in (1, 2)]
    return library.Bidirectional(*rnns)


def _grid():
    for kind in CELLS:
        for name in OPTIONS:
            case = f"{kind.__name__}-{name}"
            marks = () if case in FAST else SLOW
            yield pytest.param(kind, name, marks=marks, id=case)


def _same(theirs, ours, call, case):
    """Outputs, gradients by parameters and inputs, and the state left behind."""
    x = inputs(call)
    compare_outputs(ours(x, **call), theirs(x, **call), case=case)
    compare_outputs(*(jax.tree.leaves(nnx.state(m)) for m in (ours, theirs)), case=case)
    loss = lambda model, x: scalar(model(x, **call))  # noqa: E731
    grad = nnx.grad(loss, argnums=(nnx.DiffState(0, nnx.Param), 1))
    assert_close(grad(ours, x), nnx_jit_once(grad)(theirs, x), case=case)


@pytest.mark.parametrize(("kind", "name"), list(_grid()))
def test_values_and_gradients_are_those_of_flax(kind, name):
    theirs = _layer(nnx, kind, name)
    ours = _layer(parscan_bp.nnx, kind, name, solver=pb.Sweep(chunk=4))
    if name == "bidirectional":
        ours.forward_rnn.solver = ours.backward_rnn.solver = pb.Sweep(chunk=4)
    _same(theirs, ours, OPTIONS[name], f"{kind.__name__}, {name}")


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_every_solver(solver):
    theirs = nnx.RNN(_cell(nnx.SimpleCell))
    ours = parscan_bp.nnx.RNN(_cell(nnx.SimpleCell), solver=solver)
    _same(theirs, ours, {"return_carry": True}, str(solver))


BEYOND = ["solver", "forward", "memory_limit", "report", "custom_vjp"]


def test_attributes_of_the_layer_are_those_of_flax():
    cell = _cell(nnx.GRUCell)
    options = {"time_major": True, "return_carry": True, "unroll": 3, "rngs": nnx.Rngs(carry=5)}
    theirs, ours = nnx.RNN(cell, **options), parscan_bp.nnx.RNN(cell, **options)
    for name in set(vars(theirs)) - {"cell", "rngs", "_pytree__state", "_pytree__nodes"}:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.cell is theirs.cell is cell
    assert set(vars(ours)) - set(vars(theirs)) == set(BEYOND)
    assert isinstance(ours, nnx.RNN)


@pytest.mark.parametrize("name", ["RNN", "Bidirectional"])
@pytest.mark.parametrize("method", ["__init__", "__call__"])
def test_signatures_are_those_of_flax_and_what_is_beyond(name, method):
    theirs, ours = (getattr(getattr(m, name), method) for m in (nnx, parscan_bp.nnx))
    theirs, ours = (inspect.signature(f).parameters for f in (theirs, ours))
    beyond = {
        "__init__": {"RNN": BEYOND},
        "__call__": {name: ["mask", "reset"]},
    }
    assert list(ours) == [*theirs, *beyond[method].get(name, [])]
    for key, parameter in theirs.items():
        assert (ours[key].default, ours[key].kind) == (parameter.default, parameter.kind), key


BAD_CALLS = {
    "carry of another shape": {"initial_carry": jnp.zeros((2, 2))},
    "carry of another structure": {"initial_carry": (jnp.zeros(2), jnp.zeros(2))},
    "lengths of another batch": {"seq_lengths": jnp.ones((2, 2), int), "reverse": True},
    "unknown option": {"lengths": 3},
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_mistakes_are_reported_as_flax_reports_them(call):
    raised = []
    for library in (nnx, parscan_bp.nnx):
        with pytest.raises(Exception) as info:
            library.RNN(_cell(nnx.GRUCell))(inputs(), **call)
        raised.append((info.type, str(info.value).split("\n")[0]))
    assert raised[0][0] is raised[1][0]
    assert raised[0][1].split("(")[0].removeprefix("RNN.") in raised[1][1]


@pytest.mark.parametrize("carry", [None, jnp.zeros((3, HIDDEN), FLOAT)], ids=["none", "carry"])
def test_a_layer_that_a_transformation_closes_over_is_refused_and_unharmed(carry):
    layer = parscan_bp.nnx.RNN(_cell(nnx.GRUCell))
    before = layer(inputs(), initial_carry=carry)
    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
        with pytest.raises(errors.TraceContextError):
            transform(lambda x: layer(x, initial_carry=carry))(inputs())
    assert jnp.array_equal(layer(inputs(), initial_carry=carry), before)


def test_rngs_of_a_wrong_type_are_refused_as_by_flax():
    for library in (nnx, parscan_bp.nnx):
        with pytest.raises(ValueError, match="Expected rngs to be"):
            library.RNN(_cell(nnx.GRUCell), rngs=3)


class Stateful(nnx.RNNCellBase):
    """A cell of a user: counts its steps, drops units, and keeps statistics."""

    num_feature_axes = 1

    def __init__(self, rngs):
        self.w = nnx.Linear(INPUTS + HIDDEN, HIDDEN, use_bias=False, param_dtype=FLOAT, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, param_dtype=FLOAT, rngs=rngs)
        # Flax makes float32 statistics, which a float64 input turns into float64 ones.
        self.norm.mean = nnx.BatchStat(jnp.zeros(HIDDEN, FLOAT))
        self.norm.var = nnx.BatchStat(jnp.ones(HIDDEN, FLOAT))
        self.steps = nnx.Variable(jnp.zeros((), int))

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return jnp.zeros((*input_shape[:-1], HIDDEN), FLOAT)

    def __call__(self, carry, x):
        self.steps[...] += 1
        h = jnp.tanh(self.norm(self.w(jnp.concatenate([x, carry], axis=-1))))
        return self.dropout(h), h * self.steps[...]


@pytest.mark.parametrize("broadcast", [None, pytest.param("dropout", marks=SLOW)])
def test_a_cell_with_state_and_random_streams_does_what_it_does_in_flax(broadcast):
    def make(library, **keywords):
        return library.RNN(Stateful(nnx.Rngs(0, dropout=7)), broadcast_rngs=broadcast, **keywords)

    ours = make(parscan_bp.nnx, solver=pb.Sweep(chunk=4))
    _same(make(nnx), ours, {"return_carry": True}, str(broadcast))
    assert ours.cell.steps[...] == 2 * TIME  # called once plainly and once under grad


class Opaque(nnx.RNNCellBase):
    """A cell of a user that the linear model does not hold."""

    num_feature_axes = 1

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return jnp.zeros(input_shape, FLOAT)

    def __call__(self, carry, x):
        @jax.custom_vjp
        def double(v):
            return 2 * v

        double.defvjp(lambda v: (2 * v, None), lambda _, ct: (3 * ct,))
        h = jnp.tanh(double(carry) + x)
        return h, h


def test_a_cell_that_cannot_be_linearised_runs_as_in_flax_or_is_refused():
    x = inputs()
    ours, theirs = parscan_bp.nnx.RNN(Opaque()), nnx.RNN(Opaque())
    grad = nnx.grad(lambda m, x: scalar(m(x, initial_carry=x[:, 0])), argnums=1)
    compare_outputs(grad(ours, x), grad(theirs, x))
    with pytest.raises(NotImplementedError, match="custom_vjp_call"):
        parscan_bp.nnx.RNN(Opaque(), solver=pb.Sweep())(x, initial_carry=x[:, 0])


def _count_calls(monkeypatch, kind):
    """The calls of a class of cells from now on, by Python."""
    calls, original = [], kind.__call__

    def counted(self, carry, x):
        calls.append(None)
        return original(self, carry, x)

    monkeypatch.setattr(kind, "__call__", counted)
    return calls


def test_nothing_is_traced_twice(monkeypatch):
    x = inputs()[:1, :3]  # a shape that no other test has: traces serve all equal layers
    rnn = parscan_bp.nnx.RNN(_cell(nnx.GRUCell), solver=pb.Sweep(chunk=4))
    calls = _count_calls(monkeypatch, nnx.GRUCell)
    rnn(x)
    assert len(calls) == 1
    rnn(2 * x)
    rnn.cell.dense_h.kernel[...] *= 2
    rnn(x)
    grad = nnx.jit(nnx.grad(lambda m, x: scalar(m(x))))
    grad(rnn, x)
    assert len(calls) == 1
    rnn(x, reverse=True)
    assert len(calls) == 2


FACTORS = {"of nobody": 1.0}


class Changing(nnx.RNNCellBase):
    """A cell of a user that reads Python values: one that it closes over, others of its own."""

    num_feature_axes = 1
    of_the_class = 1.0

    def __init__(self):
        self.attribute = 1.0
        self.held = {"factor": [1.0]}

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return jnp.zeros(input_shape, FLOAT)

    def __call__(self, carry, x):
        factor = self.attribute * self.of_the_class * FACTORS["of nobody"]
        h = jnp.tanh(0.5 * factor * carry + self.held["factor"][0] * x)
        return h, h


CHANGES = {
    "attribute": lambda patch, layer: setattr(layer.cell, "attribute", 2.0),
    "in an attribute": lambda patch, layer: layer.cell.held["factor"].__setitem__(0, 2.0),
    "of the class": lambda patch, layer: patch.setattr(Changing, "of_the_class", 2.0),
    "closed over": lambda patch, layer: patch.setitem(FACTORS, "of nobody", 2.0),
}


@pytest.mark.parametrize("solver", [None, pb.Sweep(chunk=4)], ids=["auto", "sweep"])
@pytest.mark.parametrize("change", CHANGES)
def test_python_values_that_a_cell_reads_are_those_of_the_call(change, solver, monkeypatch):
    """The layer of Flax, called outside of a `jit`, sees each change."""
    x = inputs()
    ours, theirs = (
        parscan_bp.nnx.RNN(Changing(), solver=solver, rngs=False),
        nnx.RNN(Changing(), rngs=False),
    )
    call = lambda m: m(x, initial_carry=x[:, 0])  # noqa: E731
    before = call(ours)
    compare_outputs(before, call(theirs), case=change)
    for layer in (ours, theirs):
        CHANGES[change](monkeypatch, layer)
    compare_outputs(call(ours), call(theirs), case=change)
    assert not jnp.array_equal(call(ours), before)


def test_an_activation_of_ones_own_is_seen_to_change():
    slope = [1.0]
    cell = _cell(nnx.SimpleCell)
    cell.activation_fn = lambda v: jnp.tanh(slope[0] * v)
    ours, theirs = parscan_bp.nnx.RNN(cell), nnx.RNN(cell)
    for slope[0] in (1.0, 0.5):
        compare_outputs(ours(inputs()), theirs(inputs()), case=f"slope {slope[0]}")


class Looking(Changing):
    """A cell that looks at its values."""

    def __call__(self, carry, x):
        return super().__call__(2 * carry if (carry > 0).all() else carry, x)


def test_a_cell_may_look_at_its_values_where_jit_is_disabled():
    x = inputs()
    with jax.disable_jit():
        got, want = (
            library.RNN(Looking(), rngs=False)(x, initial_carry=x[:, 0])
            for library in (parscan_bp.nnx, nnx)
        )
    compare_outputs(got, want)


class Model(nnx.Module):
    """A larger model around a bidirectional layer."""

    def __init__(self, library, rngs, **keywords):
        self.embed = nnx.Linear(INPUTS, INPUTS, param_dtype=FLOAT, rngs=rngs)
        cells = [nnx.GRUCell(INPUTS, HIDDEN, param_dtype=FLOAT, rngs=rngs) for _ in range(2)]
        self.rnn = library.Bidirectional(*(library.RNN(cell, **keywords) for cell in cells))
        self.out = nnx.Linear(2 * HIDDEN, 1, param_dtype=FLOAT, rngs=rngs)

    def __call__(self, x):
        return self.out(self.rnn(jnp.tanh(self.embed(x))))


def test_nested_in_jit_vmap_and_grad_of_a_larger_model():
    def run(library, **keywords):
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(key):
            return Model(library, nnx.Rngs(key), **keywords)

        @nnx.jit
        @nnx.vmap(in_axes=(0, None))
        def grads(model, x):
            return nnx.grad(lambda m, x: scalar(m(x)))(model, x)

        models = make(jax.random.split(jax.random.key(0), 2))
        return grads(models, inputs())

    assert_close(run(parscan_bp.nnx, solver=pb.Sweep(chunk=4)), run(nnx))


@SLOW
def test_second_derivatives():
    def curvature(library, **keywords):
        graph, params, rest = nnx.split(library.RNN(_cell(nnx.GRUCell), **keywords), nnx.Param, ...)
        x = inputs()

        def loss(params):
            return scalar(nnx.merge(graph, params, rest)(x, initial_carry=jnp.zeros((3, HIDDEN))))

        return jax.jvp(jax.grad(loss), (params,), (params,))[1]

    assert_close(curvature(parscan_bp.nnx, solver=pb.Sweep(chunk=4)), curvature(nnx))


def test_a_memory_limit_is_that_of_scan():
    x = jnp.ones((2, 400, 2))
    limited, whole = (
        parscan_bp.nnx.RNN(_cell(nnx.LSTMCell), memory_limit=limit) for limit in (8000, None)
    )
    loss = lambda layer: jnp.sum(layer(x)[:, -1] ** 2)  # noqa: E731
    got, want = (nnx.grad(loss)(layer) for layer in (limited, whole))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="memory_limit: got 10 bytes; "):
        parscan_bp.nnx.RNN(_cell(nnx.LSTMCell), memory_limit=10)(x)
