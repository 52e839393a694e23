"""Tick tables: what each schedule promises, counted in the table itself."""

import dataclasses
import itertools

import numpy as np
import pytest
from schedule_cases import CASES, PAPER, SYNCHRONOUS

import parscan_bp as pb
from parscan_bp import pipeline
from parscan_bp.pipeline.schedules.base import InMicrobatches
from parscan_bp.pipeline.schedules.together import Together

EACH = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@EACH
@pytest.mark.parametrize("more", [1, 2, 7])
def test_every_pass_reads_the_weights_that_the_schedule_states(case, more):
    batches = case.schedule.on_the_way(case.blocks) + more
    table = case.schedule.table(case.blocks, batches)  # checks the order, and that all are there
    for task in table.tasks:
        stated = {"forward": case.forward, "update": lambda block, batch: batch}
        assert task.version == stated.get(task.kind, case.backward)(task.block, task.batch), task


@EACH
def test_staleness_is_that_of_a_full_pipeline(case):
    late = 40
    for k, own in enumerate(case.schedule.staleness(case.blocks)):
        assert own == (late - case.forward(k, late), late - case.backward(k, late))


@pytest.mark.parametrize("name", PAPER)
def test_the_queues_of_the_papers_table_1(name):
    schedule = PAPER[name]
    p, m, q, blocks = schedule.p, schedule.m, schedule.queues, len(schedule.p)
    assert str(schedule) == name
    assert q == (0, *[2 if p[0] == 3 else 1] * (blocks - 1))
    assert all(m[k] == m[k + 1] + p[k] + q[k + 1] for k in range(blocks - 1))
    for k, held in enumerate(schedule.held(blocks)):
        last = k == blocks - 1
        assert held.inputs == (0 if last else 1 + m[k]) and held.linearisations == last
        assert held.outputs == (0 if last else 1 + p[k])
        assert held.gradients == (1 + q[k] if k else 0)
        assert held.weights == 1


def test_what_the_other_schedules_hold():
    def of(schedule, name, blocks=4):
        return [getattr(held, name) for held in schedule.held(blocks)]

    assert of(pipeline.BackPropagation(), "linearisations") == [1, 1, 1, 1]
    assert of(pipeline.FeaturesReplay(), "inputs") == [4, 3, 2, 0]
    assert of(pipeline.FeaturesReplay(), "weights") == [1, 1, 1, 1]
    assert of(pipeline.DelayedGradients(), "linearisations") == [4, 3, 2, 1]
    assert of(pipeline.GPipe(8), "inputs") == [8] * 4
    assert of(pipeline.GPipe(8, recompute=False), "linearisations") == [8] * 4
    assert of(pipeline.OneFOneB(8), "linearisations") == [4, 3, 2, 1]
    assert of(pipeline.OneFOneB(2), "linearisations") == [2, 2, 2, 1]
    assert of(pipeline.InterleavedOneFOneB(4, devices=2), "linearisations") == [4, 3, 2, 1]
    assert of(pipeline.PipeDream(), "linearisations") == [4, 3, 2, 1]
    assert of(pipeline.PipeDream(), "weights") == [4, 3, 2, 1]
    assert of(pipeline.PipeDream2BW(8), "linearisations") == [4, 3, 2, 1]
    assert of(pipeline.PipeDream2BW(8), "weights") == [2] * 4
    assert max(of(pipeline.ZeroBubble(8), "linearisations")) == 4
    assert max(of(pipeline.ZeroBubble(8, lookahead=2), "linearisations")) == 7


@pytest.mark.parametrize(("blocks", "parts"), [(2, 2), (3, 7), (4, 8), (4, 3)])
def test_bubbles_are_those_of_the_papers(blocks, parts):
    thirds = pipeline.Costs(forward=1.0, backward=2.0)
    idle = (blocks - 1) / (parts + blocks - 1)
    for schedule in (pipeline.GPipe(parts, recompute=False), pipeline.OneFOneB(parts)):
        assert pipeline.bubble(schedule.table(blocks, 1), thirds) == pytest.approx(idle)
        assert pipeline.bubble(schedule.table(blocks, 5), thirds) == pytest.approx(idle)
    plain = pipeline.BackPropagation().table(blocks, 3)
    assert pipeline.bubble(plain, thirds) == pytest.approx(1 - 1 / blocks)


@pytest.mark.parametrize(
    ("devices", "rounds", "parts"), [(2, 2, 4), (3, 2, 9), (4, 3, 8), (1, 3, 2)]
)
def test_several_blocks_a_device_leave_a_part_of_the_bubble(devices, rounds, parts):
    table = pipeline.InterleavedOneFOneB(parts, devices).table(devices * rounds, 1)
    idle = (devices - 1) / (rounds * parts + devices - 1)
    assert pipeline.bubble(table, pipeline.Costs(1.0, 1.0)) == pytest.approx(idle)
    assert table.ticks == 2 * (rounds * parts + devices - 1)


@pytest.mark.parametrize(("blocks", "parts"), [(2, 3), (3, 7), (4, 8)])
def test_zero_bubbles_first_block_is_idle_for_a_third_or_never(blocks, parts):
    """F = I = W here; 1F1B leaves 3 (K - 1) of these units."""
    for lookahead, idle in ((1, blocks - 1), (2, 0)):
        schedule = pipeline.ZeroBubble(parts, lookahead=lookahead)
        units = parts * pipeline.time_per_batch(schedule, blocks)
        assert units == pytest.approx(3 * parts + idle)
        stored = {held.linearisations for held in schedule.held(blocks)}
        assert stored == {lookahead * (blocks - 1) + 1}


def test_more_in_flight_leaves_a_smaller_bubble():
    bubbles = [
        pipeline.bubble(schedule.table(4, 6))
        for schedule in (
            pipeline.OneFOneB(12),
            pipeline.ZeroBubble(12),
            pipeline.ZeroBubble(12, lookahead=2),
        )
    ]
    assert bubbles == sorted(bubbles, reverse=True) and len(set(bubbles)) == 3


def _formulas(forward, backward, c, parts):
    again = [*forward[:-1], 0.0]
    blocks = len(forward)
    equal = max(forward) == min(forward) and max(backward) == min(backward)
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    dsp = pipeline.DSP((1,) * (blocks - 1) + (0,), tuple(range(0, 2 * blocks, 2))[::-1])
    formulas = {
        pipeline.BackPropagation(): sum(both) + 2 * (blocks - 1) * c,
        dsp: max(map(sum, zip(both, again, strict=True))),
        pipeline.FeaturesReplay(): sum(forward)
        + (blocks - 1) * c
        + max(map(sum, zip(again, backward, strict=True))),
        pipeline.DelayedGradients(): sum(forward) + (blocks - 1) * c + max(backward),
    }
    if equal:
        flushed = (parts + blocks - 1) / parts * both[0] + 2 * (blocks - 1) * c / parts
        formulas |= {
            pipeline.GPipe(parts): flushed + forward[0],
            pipeline.GPipe(parts, recompute=False): flushed,
        }
    if equal and c == 0:
        formulas |= {
            pipeline.OneFOneB(parts): flushed,
            pipeline.PipeDream(): both[0],
            pipeline.PipeDream2BW(parts): both[0],
        }
    return formulas


@pytest.mark.parametrize("c", [0.0, 0.5])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [((1.0,) * 4, (2.0,) * 4), ((1.0, 2.0, 1.5), (2.0, 3.5, 3.0)), ((1.0, 1.0), (2.0, 2.0))],
)
def test_the_event_recursion_gives_the_speed_formulas(forward, backward, c):
    costs = pipeline.Costs(forward, backward, c)
    for schedule, seconds in _formulas(forward, backward, c, parts=8).items():
        got = pipeline.time_per_batch(schedule, len(forward), costs, batches=50)
        assert got == pytest.approx(seconds), schedule


def test_nothing_begins_before_what_it_needs():
    rng = np.random.default_rng(0)
    for case in CASES.values():
        table = case.schedule.table(case.blocks, case.schedule.on_the_way(case.blocks) + 3)
        slow = 1 + rng.random((table.ticks, table.blocks))
        spans = pipeline.timeline(table, pipeline.Costs(transfer=0.3), slow=slow)
        transfer = 0.3 / table.parts - 1e-9
        for k in range(table.blocks):
            own = [span for span in spans if span.task.block == k]
            assert all(a.stop <= b.start for a, b in itertools.pairwise(own))
        stop = {
            (s.task.kind, s.task.block, s.task.batch, s.task.part): s.stop
            for s in spans
            if not s.again
        }
        for span in spans:
            task, which = span.task, (span.task.batch, span.task.part)
            if task.kind == "forward" and task.block:
                assert span.start >= stop["forward", task.block - 1, *which] + transfer
            if task.kind in ("backward", "input_gradient") and not span.again:
                above = (task.kind, task.block + 1, *which)
                assert above not in stop or span.start >= stop[above] + transfer


def test_a_table_is_printed_tick_by_tick():
    text = str(pipeline.DSP((1, 0), (2, 0)).table(2, 70))
    lines = text.splitlines()
    assert lines[0] == "DSP(1,0;2,0): 2 blocks, 70 batches"
    assert lines[2].split() == ["0", "F0@0"]
    assert lines[4].split() == ["2", "F2@0", "B0@0", "U0@0", "F1@1", "B1@1", "U1@1"]
    assert lines[-1] == "... and 12 ticks more" and len(lines) == 63


@pytest.mark.parametrize(
    ("p", "m", "q", "error", "words"),
    [
        ((1, 1, 0), (4, 2), None, ValueError, "m: got 2 numbers for 3 in p"),
        ((), (), None, ValueError, "m: got 0 numbers"),
        ((1, 1, 1), (4, 2, 0), None, ValueError, r"p: got p\[2\] = 1 for the last block"),
        ((1, 1, 0), (4, 2, 1), None, ValueError, r"m: got m\[2\] = 1 for the last block"),
        (
            (2, 2, 0),
            (3, 2, 0),
            None,
            ValueError,
            r"m\[0\] = 3 with m\[1\] = 2 and p\[0\] = 2.*q\[1\] = m\[0\] - m\[1\] - p\[0\] = -1"
            ".*at least 4",
        ),
        ((1, 1, 0), (4, 2, 0), (0, 2, 1), ValueError, r"q: got \(0, 2, 1\).*which is \(0, 1, 1\)"),
        ((-1, 0), (2, 0), None, ValueError, r"p\[0\]: got -1"),
        ((1.5, 0), (2, 0), None, TypeError, r"p\[0\]: got 1.5"),
        (1, (2, 0), None, TypeError, "p: got 1"),
    ],
)
def test_impossible_queues(p, m, q, error, words):
    with pytest.raises(error, match=words):
        pipeline.DSP(p, m, q)


TABLE = pipeline.GPipe(2).table(2, 1)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: pipeline.GPipe(0), ValueError, "microbatches: got 0"),
        (lambda: pipeline.OneFOneB("3"), TypeError, "microbatches: got '3'"),
        (lambda: pipeline.GPipe(2, recompute=1), TypeError, "recompute: got 1"),
        (lambda: pipeline.PipeDream2BW(2).table(3, 9), ValueError, "got 2 for 3 blocks"),
        (lambda: PAPER["DSP(1,1,0;4,2,0)"].table(4, 9), ValueError, "blocks: got 4; DSP.* for 3"),
        (
            lambda: PAPER["DSP(1,1,0;4,2,0)"].table(3, 4),
            ValueError,
            "batches: got 4; .* 4 batches on the way .* at least 5",
        ),
        (lambda: pipeline.PipeDream().table(3, 2), ValueError, "at least 3 are wanted"),
        (lambda: pipeline.GPipe(2).table(3, 0), ValueError, "batches: got 0"),
        (lambda: pipeline.Costs(forward=-1.0), ValueError, "forward: got -1"),
        (lambda: pipeline.Costs((1.0, 2.0)).per_block(3), ValueError, "forward: got 2 numbers"),
        (lambda: pipeline.Costs(float("inf")), ValueError, "forward: got inf; a finite number"),
        (lambda: pipeline.Costs([1.0, "2"]), TypeError, r"forward\[1\]: got '2'"),
        (lambda: pipeline.bubble(TABLE, pipeline.Costs(0.0, 0.0)), ValueError, "costs: got .*0.0"),
        (lambda: pipeline.bubble(TABLE, (1.0, 2.0)), TypeError, "costs: got .*; a Costs, or None"),
        (
            lambda: pipeline.timeline(pipeline.GPipe(2)),
            TypeError,
            "table: got .*; a Table, such as",
        ),
        (lambda: pipeline.time_per_batch("GPipe", 2), TypeError, "schedule: got 'GPipe'"),
        (lambda: pipeline.timeline(TABLE, slow=-np.ones((6, 2))), ValueError, "slow: got factors"),
        (
            lambda: pipeline.timeline(TABLE, slow=np.full((6, 2), "x")),
            TypeError,
            "slow: got an arr",
        ),
        (
            lambda: pipeline.timeline(pipeline.GPipe(2).table(2, 1), slow=np.ones((2, 2))),
            ValueError,
            r"slow: got shape \(2, 2\); \(6, 2\)",
        ),
    ],
)
def test_mistakes(make, error, words):
    with pytest.raises(error, match=words):
        make()


def _changed(**new):
    """The table of two batches through two blocks with one task replaced, by its position."""
    table = pipeline.PipeDream().table(2, 3)
    at = new.pop("at")
    tasks = list(table.tasks)
    tasks[at] = dataclasses.replace(tasks[at], **new)
    return dataclasses.replace(table, tasks=tuple(tasks))


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({"at": 0, "kind": "sideways"}, "the kind 'sideways'"),
        ({"at": 0, "block": 7}, "there are 2 blocks"),
        ({"at": 0, "block": 1}, "needs, the forward of batch 0, part 0 at block 0"),
        ({"at": 0, "tick": 9}, "comes after tick 9"),
        ({"at": 1, "batch": 0}, "it is there twice"),
        ({"at": 0, "version": 1}, "reads weights of version 1; the block has had 0"),
        ({"at": -1, "version": 1}, "starts from version 1; the newest .* 2 updates"),
        ({"at": -2, "version": 2}, "keeps its linearisation, which is of version 1"),
    ],
)
def test_a_table_that_cannot_run_is_refused(new, words):
    with pytest.raises(ValueError, match=words):
        _changed(**new)


def test_a_table_with_a_task_missing_is_refused():
    table = pipeline.GPipe(2).table(2, 1)
    with pytest.raises(ValueError, match="before what it needs, the weight_gradient"):
        dataclasses.replace(table, tasks=tuple(t for t in table.tasks if t.kind != "backward"))
    with pytest.raises(ValueError, match="4 forward passes, 4 backward passes and 1 updates"):
        dataclasses.replace(table, tasks=table.tasks[:-1])
    with pytest.raises(ValueError, match="keeps: got 1 bools"):
        dataclasses.replace(table, keeps=(True,))


def test_blocks_that_wait_for_each_other_are_refused():
    from parscan_bp.pipeline.schedules.orders import NextTask, clocked

    orders = [
        [NextTask("backward", 0), NextTask("forward", 0)],
        [NextTask("forward", 0), NextTask("backward", 0)],
    ]
    with pytest.raises(ValueError, match="wait for each other"):
        clocked(orders, lambda block, batch: 0)


def test_every_schedule_is_a_case():
    known = [*pipeline.Schedule.__subclasses__(), *InMicrobatches.__subclasses__()]
    ours = {each for each in known if "parscan_bp." in each.__module__}
    named = ours - {Together, InMicrobatches}
    assert {type(case.schedule) for case in CASES.values()} == named
    assert set(SYNCHRONOUS) < set(CASES)
    assert pb.pipeline is pipeline


def test_a_block_may_take_no_time():
    costs = pipeline.Costs([0.0, 1.0], [0.0, 2.0])
    assert costs == pipeline.Costs((0.0, 1.0), (0.0, 2.0))
    assert pipeline.bubble(pipeline.BackPropagation().table(2, 1), costs) == pytest.approx(0.5)
    assert pipeline.time_per_batch(pipeline.PipeDream(), 2, costs) == pytest.approx(3.0)
    assert pipeline.time_per_batch(pipeline.PipeDream(), 2, pipeline.Costs(0.0, 0.0)) == 0.0
