"""The paper's equations, what programs send, and the choice of grids by them."""

import itertools
import math

import jax
import pytest

import parscan_bp as pb
from bench.paper.grids.equations import Paper
from bench.paper.grids.machine import EQUATIONS as PAPER
from bench.paper.grids.networks import IMAGE, alexnet
from bench.paper.grids.weights import weight_layers
from parscan_bp.layers import Conv, Flatten, Linear, MaxPool
from parscan_bp.parallel import Grid, best_grid, explain_grid

ALEXNET = weight_layers(alexnet(), IMAGE)
CONVOLUTIONS = {row.position for row in ALEXNET if not row.connected}

PROGRAM = """
import jax
from parscan_bp.layers import AveragePool, Conv, ConvTranspose, Flatten, Linear, MaxPool
from bench.paper.grids.machine import PROGRAM
from parscan_bp.parallel import Grid, SyncBatchNorm, divide
from tests.grids.compiled import check_program

net = [
    Conv(4, (3, 3), groups=2), SyncBatchNorm(), jax.nn.relu, MaxPool((3, 3), 2), Conv(6, (2, 2)),
    Flatten(), Linear(10),
]
tall, wide = Grid(data=2, height=4), Grid(data=2, height=2, width=2)
model, batch = Grid(data=2, model=4), Grid(data=8)
for grids in ([tall] * 5 + [model] * 2, [batch, wide, wide, wide, batch, Grid(model=8), batch]):
    check_program(divide(net, (13, 11, 4), grids), 16, PROGRAM)
"""

NETWORKS = """
import jax
from bench.paper.grids.networks import IMAGE, alexnet
from bench.paper.images.networks import vgg11
from parscan_bp.layers import Flatten
from bench.paper.grids.machine import PROGRAM
from parscan_bp.parallel import Grid, divide
from tests.grids.compiled import check_program, whole_bytes

layers, features, batch = {network}
head = next(k for k, layer in enumerate(layers) if isinstance(layer, Flatten))
first, last = {grids}
grids = [first] * head + [last] * (len(layers) - head)
stack = divide(layers, features, grids, devices=jax.devices()[: first.processes])
check_program(stack, batch, PROGRAM)
rows = PROGRAM.rows(stack, batch)
alone = {{}}
for row in rows:
    for direction in ("forward", "backward"):
        for kind, size in row.bytes_sent(direction).items():
            alone[kind] = alone.get(kind, 0) + size
print("layer by layer", alone, "the whole program", whole_bytes(stack, batch))
"""

NETS = {
    "alexnet": "alexnet(), IMAGE, 64",
    "vgg11": "vgg11(), (32, 32, 3), 64",
}
SIX = [
    "Grid(data=8), Grid(data=8)",
    "Grid(model=8), Grid(model=8)",
    "Grid(data=4, model=4), Grid(data=4, model=4)",
    "Grid(data=16), Grid(data=4, model=4)",
    "Grid(data=16, height=2), Grid(data=16, model=2)",
    "Grid(data=16, height=4), Grid(data=8, model=8)",
]


def test_alexnet_is_the_papers():
    assert ALEXNET[0].name == "0 Conv" and len(ALEXNET) == 8
    assert sum(row.weights for row in ALEXNET) == 60_954_656  # "61M" of Table 1
    assert [row.d_out for row in ALEXNET[:3]] == [55 * 55 * 96, 27 * 27 * 256, 13 * 13 * 384]
    assert ALEXNET[5].inputs == (6, 6, 256) and ALEXNET[5].window == (6, 6)
    assert [row.connected for row in ALEXNET] == [False] * 5 + [True] * 3


def test_equations_contain_one_another():
    for processes in (1, 2, 8, 24):
        assert PAPER.integrated(ALEXNET, 96, 1, processes) == PAPER.batch(ALEXNET, processes)
        assert PAPER.integrated(ALEXNET, 96, processes, 1) == PAPER.model(ALEXNET, 96, processes)
    everywhere = {row.position for row in ALEXNET}
    alone = PAPER.integrated(ALEXNET, 96, 1, 8, domain=everywhere)
    assert alone.total == pytest.approx(PAPER.batch(ALEXNET, 8).total) and not alone.halo


def test_terms_of_one_layer_by_hand():
    (row,) = weight_layers([Conv(8, (3, 5), padding="SAME")], (16, 12, 3))
    paper = Paper(1.0, 0.0)
    alpha = paper.integrated([row], 64, 4, 2)
    assert (alpha.gather, alpha.inputs, alpha.weights) == (2.0, 0.0, 2.0)
    beta = Paper(0.0, 1.0)
    assert beta.integrated([row], 64, 4, 2).gather == 32 * 3 / 4 * (16 * 12 * 8) * 4
    assert beta.batch([row], 4).weights == 2 * 3 / 4 * (3 * 5 * 3 * 8) * 4
    assert beta.domain([row], 64, 4).halo == 64 * 4 * (12 * 3 * 1 + 12 * 8 * 2)
    assert paper.domain([row], 64, 4).halo == 2.0
    assert beta.redistribution(row.d_out, 64, 4) == 64 * 3 / 4 * row.d_out * 4
    (pointwise,) = weight_layers([Conv(8, (1, 1))], (16, 12, 3))
    assert paper.domain([pointwise], 64, 4).halo == 0.0


def test_equation_5():
    (layer,) = weight_layers([Conv(384, (3, 3))], (13, 13, 384))
    assert PAPER.batch_limit(layer) == pytest.approx(13.63, abs=0.01)  # the paper: 12
    limit = math.floor(PAPER.batch_limit(layer))
    beta = Paper(0.0, 1.0)
    volumes = [
        (beta.batch([layer], 64).total, 3 * beta.integrated([layer], batch, 64, 1).gather)
        for batch in (limit, limit + 1)
    ]
    assert volumes[0][0] > volumes[0][1] and volumes[1][0] < volumes[1][1]


def _speedups(processes, **how):
    base = PAPER.batch(ALEXNET, processes).total
    rows = [2**k for k in range(processes.bit_length())]
    made = {r: PAPER.integrated(ALEXNET, 2048, r, processes // r, **how) for r in rows}
    return {r: base / terms.total for r, terms in made.items()}


def test_what_the_equations_give_of_figures_6_and_7():
    same, mixed = _speedups(512), _speedups(512, batch_only=CONVOLUTIONS)
    # The paper says 5.0 and 9.7 at 16 x 32; its own equations do not give them.
    assert (round(same[4], 2), round(same[16], 2)) == (2.72, 1.55)
    assert (round(mixed[16], 2), round(mixed[32], 2)) == (8.21, 8.71)
    assert max(_speedups(8), key=_speedups(8).get) == 1  # pure batch is best at P = 8
    for processes in (128, 512):
        found = _speedups(processes)
        assert max(found, key=found.get) > 1
    for processes in (8, 32, 128, 512):
        best = max(_speedups(processes, batch_only=CONVOLUTIONS).values())
        assert best > max(_speedups(processes).values()) or processes == 8


def test_the_domain_sends_more_than_the_batch():
    for processes in (8, 64, 512):
        domain = PAPER.domain(ALEXNET, 2048, processes).total
        assert domain > PAPER.batch(ALEXNET, processes).total


@pytest.mark.reads_compiled
def test_the_program_is_what_compiled_layers_send(run_on_devices):
    run_on_devices(PROGRAM, 8)


@pytest.mark.reads_compiled
@pytest.mark.slow
@pytest.mark.parametrize("grids", SIX)
@pytest.mark.parametrize("network", NETS)
def test_the_program_of_whole_networks(network, grids, run_on_devices):
    run_on_devices(NETWORKS.format(network=NETS[network], grids=grids), 64)


NET = [Conv(16, (3, 3)), jax.nn.relu, MaxPool((2, 2)), Flatten(), Linear(64), Linear(8)]


def test_the_best_grids_are_the_best_of_all():
    net, features, processes, batch = [*NET[:1], *NET[3:5]], (4, 4, 3), 4, 8
    candidates = [Grid(data=c, model=processes // c) for c in (1, 2, 4)]
    candidates += [Grid(data=c, height=processes // c) for c in (1, 2)]
    plans = []
    for grids in itertools.product(candidates, candidates[:3], candidates[:3]):
        plans.append(explain_grid(net, features, grids, batch))
    best = best_grid(net, features, processes, batch)
    assert best.seconds == pytest.approx(min(plan.seconds for plan in plans))
    least = min(plan.memory for plan in plans)
    for limit in (least, (least + best.memory) // 2):
        allowed = [plan.seconds for plan in plans if plan.memory <= limit]
        found = best_grid(net, features, processes, batch, memory_limit=limit)
        assert found.memory <= limit and found.seconds == pytest.approx(min(allowed))
    with pytest.raises(ValueError, match=f"the least has {least} on a process"):
        best_grid(net, features, processes, batch, memory_limit=least - 1)


def test_grids_of_processes_with_several_primes():
    plan = best_grid([Linear(24), Linear(24)], (12,), 6, 12)
    assert {grid.processes for grid in plan.grids} == {6}


def test_an_explanation_says_where_everything_lies():
    grids = [Grid(data=2, height=2)] * 3 + [Grid(data=2, model=2)] * 3
    plan = explain_grid(NET, (8, 8, 3), grids, 8)
    text = str(plan)
    for spec in (jax.P("data", "height_model", None), jax.P(None, "height_model")):
        assert str(spec) in text
    assert "redistribute" in text and "collective-permute" in text
    assert f"one iteration sends for {plan.seconds:.3g} s" in text


def test_bad_costs_are_named():
    with pytest.raises(TypeError, match="link: got 3, of type int; a Link is wanted"):
        best_grid(NET, (8, 8, 3), 4, 8, link=3)
    with pytest.raises(TypeError, match="link: got 3, of type int; a Link is wanted"):
        explain_grid(NET, (8, 8, 3), Grid(), 8, link=3)
    with pytest.raises(TypeError, match="memory_limit: got '1 GB', of type str; an int"):
        best_grid(NET, (8, 8, 3), 4, 8, memory_limit="1 GB")
    with pytest.raises(ValueError, match="mesh: got one of 1 device"):
        pb.parallel.measure_link(jax.sharding.Mesh(jax.devices()[:1], "a"))


def test_latency_and_bandwidth_are_measured(run_on_devices):
    run_on_devices(
        """
import jax
from parscan_bp.parallel import measure_link
cost = measure_link(jax.sharding.Mesh(jax.devices(), "a"), repeats=5)
assert 0 < cost.latency < 1 and cost.bandwidth > 1e6, cost
""",
        4,
    )
