"""The products of the package's solvers, in their order: what `record` and `record_layers` know."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from parscan_bp.planner.schedule import Tree
from parscan_bp.plots.schedule import (
    RecordedMap,
    Recorder,
    Vector,
    layers_of,
    record,
    record_layers,
    through_layers,
)
from parscan_bp.solvers import (
    Associative,
    BiCGStab,
    Blelloch,
    Chunked,
    ChunkedCorrections,
    CyclicReduction,
    Jacobi,
    Pallas,
    Planned,
    Richardson,
    Sharded,
    Sweep,
    Truncated,
)


@record.register
def _sweep(solver: Sweep, recorder, maps, state):
    states = [state]
    for through in maps:
        states += recorder.push([through], states[-1:])
    return states


@record.register
def _blelloch(solver: Blelloch, recorder, maps, state):
    levels: list[list] = []
    level = list(maps)
    while len(level) > 1 and (solver.up_levels is None or len(levels) < solver.up_levels):
        levels.append(level)
        pairs = -(-len(level) // 2) - 1
        # The map that ends the array is never used: its place is kept, it is not made.
        level = [*recorder.compose(level[0 : 2 * pairs : 2], level[1 : 2 * pairs : 2]), None]
    states = _sweep(Sweep(), recorder, level[:-1], state)
    for level in reversed(levels):
        second = recorder.push(level[0 : len(level) - 1 : 2], states[: len(level) // 2])
        states = [s for pair in zip(states, second, strict=False) for s in pair] + states[
            len(level) // 2 :
        ]
    return states + recorder.push(maps[-1:], states[-1:])


@record.register
def _chunked(solver: Chunked, recorder, maps, state):
    p = min(solver.chunks, len(maps))
    size = len(maps) // p
    # Position k of every chunk.
    whole = [maps[k : p * size : size] for k in range(size)]
    reduced = functools.reduce(recorder.compose, whole)
    *entering, _ = record(solver.inner, recorder, reduced, state)
    shown = [entering]
    for level in whole:
        shown.append(recorder.push(level, shown[-1]))
    states = [state for chunk in zip(*shown[:-1], strict=True) for state in chunk]
    return states + _sweep(Sweep(), recorder, maps[p * size :], shown[-1][-1])


@record.register
def _associative(solver: Associative, recorder, maps, state):
    def scan(maps):
        n = len(maps)
        if n < 2:
            return maps
        odd = scan(recorder.compose(maps[0 : n - 1 : 2], maps[1::2]))
        even = maps[:1] + recorder.compose(odd[: (n - 1) // 2], maps[2::2])
        return [(odd if k % 2 else even)[k // 2] for k in range(n)]

    (first,) = recorder.push(maps[:1], [state])
    after = scan([RecordedMap(maps[0].matrix, first), *maps[1:]])
    return [state, *(through.vector for through in after)]


@record.register
def _cyclic_reduction(solver: CyclicReduction, recorder, maps, state):
    after = recorder.push(maps[:1], [state])
    # Position t of a level with stride s: the map from t - s to t, and the vector so far.
    rest, stride = list(maps[1:]), 1
    after += [through.vector for through in rest]
    while rest:
        rest = [RecordedMap(m.matrix, b) for m, b in zip(rest, after[stride:], strict=True)]
        with recorder.at_once():
            known = recorder.push(rest[:stride], after[: min(stride, len(rest))])
            rest = recorder.compose(rest[:-stride], rest[stride:])
        after = [*after[:stride], *known, *(through.vector for through in rest)]
        stride *= 2
    return [state, *after]


@record.register
def _pallas(solver: Pallas, recorder, maps, state):
    def run(maps, radices, state):
        chunk = radices[0] if radices else len(maps)
        if chunk >= len(maps):
            return _sweep(Sweep(), recorder, maps, state)
        chunks = [maps[k : k + chunk] for k in range(0, len(maps), chunk)]
        *entering, _ = run(_reduced(recorder, chunks), radices[1:], state)
        return _side_by_side(recorder, chunks, entering)

    return run(list(maps), solver.radices(len(maps)), state)


@record.register
def _jacobi(solver: Jacobi, recorder, maps, state):
    return _sweeps(recorder, maps, state, solver.most(len(maps)))


@record.register
def _richardson(solver: Richardson, recorder, maps, state):
    if solver.omega != 1:
        raise NotImplementedError(
            f"solver: {solver!r} scales what it adds, and a schedule has products and sums alone; "
            "Richardson() is drawn"
        )
    return _sweeps(recorder, maps, state, solver.most(len(maps)))


@record.register
def _bicgstab(solver: BiCGStab, recorder, maps, state):
    raise NotImplementedError(
        f"solver: {solver!r} scales vectors by sums over all steps, and a schedule has products "
        "and sums alone; its rounds are two products of every map, as two sweeps of Jacobi()"
    )


@record.register
def _truncated(solver: Truncated, recorder, maps, state):
    n = len(maps)
    if solver.sliding:
        states = _sweeps(recorder, maps, state, min(solver.window - 1, n))
        return states[:-1] + recorder.push(maps[-1:], states[-2:-1])
    states = [state]
    for k, through in enumerate(maps, start=1):
        # Windows are counted from the first step in time, which is the last one here.
        is_cut = k < n and (n - k) % solver.window == 0
        states += [through.vector] if is_cut else recorder.push([through], states[-1:])
    return states


@record.register
def _corrections(solver: ChunkedCorrections, recorder, maps, state):
    n, p = len(maps), solver.count(len(maps))
    return _in_one_round(recorder, maps, state, [k * (n // p) for k in range(p + 1)])


@record.register
def _sharded(solver: Sharded, recorder, maps, state):
    devices = solver.place.count(())
    each = len(maps) // devices
    chunks = [maps[k * each : (k + 1) * each] for k in range(devices if each else 0)]
    inner = functools.partial(record, solver.here, recorder)
    if solver.method == "corrections" and each and devices > 1:
        edges = [k * each for k in range(devices + 1)]
        return _in_one_round(recorder, maps, state, edges)
    if solver.method == "turns" or devices == 1 or not each:
        states = [state]
        for own in chunks:
            states = states[:-1] + inner(own, states[-1])
    else:
        between = CyclicReduction() if solver.method in ("auto", "ppermute") else Sweep()
        *entering, _ = record(between, recorder, _reduced(recorder, chunks), state)
        states = _side_by_side(recorder, chunks, entering, solver.here)
    left = maps[devices * each :]
    return states[:-1] + inner(left, states[-1]) if left else states


@record_layers.register
def _corrections_of_layers(solver: ChunkedCorrections, recorder, system):
    n, p = system.length, solver.count(system.length)
    edges = [n * k // p for k in range(p + 1)]
    return through_layers(recorder, system, functools.partial(_in_one_round, edges=edges))


@record_layers.register
def _sharded_layers(solver: Sharded, recorder, system):
    raise NotImplementedError(
        f"chain: got a Ragged system; {solver!r} divides the layers of a parscan_bp.chain, and "
        "explain_chain says how"
    )


@record_layers.register
def _planned(solver: Planned, recorder, system):
    given, maps = layers_of(system)
    n, schedule = system.length, solver.plan(system).schedule
    # By the plan's own names: operator t takes lambda_{t+1} to lambda_t.
    made: dict[Tree, RecordedMap] = dict(enumerate(reversed(maps)))
    for left, right in schedule.products:
        (made[left, right],) = recorder.compose([made[right]], [made[left]])
    states: list[Vector] = [()] * n + given[:1]
    for tree in schedule.pushes:
        through = made[tree]
        (states[n - through.matrix.stop],) = recorder.push(
            [through], [states[n - through.matrix.start]]
        )
    return tuple(reversed(states))


def _reduced(recorder: Recorder, chunks: Sequence[Sequence[RecordedMap]]) -> list[RecordedMap]:
    """One map for each chunk, all chunks at once."""
    made = [own[0] for own in chunks]
    for k in range(1, max(map(len, chunks))):
        going = [j for j, own in enumerate(chunks) if len(own) > k]
        more = recorder.compose([made[j] for j in going], [chunks[j][k] for j in going])
        for j, one in zip(going, more, strict=True):
            made[j] = one
    return made


def _side_by_side(
    recorder: Recorder,
    chunks: Sequence[Sequence[RecordedMap]],
    entering: Sequence[Vector],
    solver=None,
) -> list[Vector]:
    """The states that enter all steps of chunks, and the one that leaves the last, level by level.

    Chunks are swept, or solved for by a solver: what each of them does at once, all do.
    """
    solver = Sweep() if solver is None else solver
    alone = [Recorder() for _ in chunks]
    states = [
        record(solver, own, maps, state)
        for own, maps, state in zip(alone, chunks, entering, strict=True)
    ]
    for level in itertools.zip_longest(*(own.levels for own in alone), fillvalue=()):
        recorder.levels.append([node for nodes in level for node in nodes])
    return [state for own in states for state in own[:-1]] + states[-1][-1:]


def _sweeps(
    recorder: Recorder, maps: Sequence[RecordedMap], state: Vector, count: int
) -> list[Vector]:
    """The states after so many products of every map, from the vectors that stand beside them."""
    after = [through.vector for through in maps]
    for _ in range(count):
        after = recorder.push(maps, [state, *after[:-1]])
    return [state, *after]


def _in_one_round(
    recorder: Recorder, maps: Sequence[RecordedMap], state: Vector, edges: Sequence[int]
) -> list[Vector]:
    """Chunks swept side by side, what leaves each handed on once, and the rest swept at the end."""
    chunks = [maps[i:j] for i, j in itertools.pairwise(edges)]
    # The vector of the last map of a chunk is known beforehand: the next chunk begins with it.
    seams = [own[-1].vector for own in chunks[:-1]]
    cut = [[*own[:-1], RecordedMap(own[-1].matrix, ())] for own in chunks[:-1]] + [list(chunks[-1])]
    states = _swept(recorder, cut, [state, *seams])
    handed: list[Vector] = [own[-1] for own in states]
    apart = [[RecordedMap(m.matrix, ()) for m in own] for own in cut]
    added = _swept(recorder, apart, [(), *handed[:-1]])
    made = [
        [(*a, *b) for a, b in zip(own, more, strict=True)]
        for own, more in zip(states, added, strict=True)
    ]
    whole = [one for own in made for one in own[:-1]] + made[-1][-1:]
    return whole[:-1] + _sweep(Sweep(), recorder, maps[edges[-1] :], whole[-1])


def _swept(
    recorder: Recorder, chunks: Sequence[Sequence[RecordedMap]], entering: Sequence[Vector]
) -> list[list[Vector]]:
    """The states that enter and leave the steps of each chunk, all chunks at once."""
    states = [[state] for state in entering]
    for k in range(max(map(len, chunks))):
        going = [j for j, own in enumerate(chunks) if len(own) > k]
        after = recorder.push([chunks[j][k] for j in going], [states[j][-1] for j in going])
        for j, one in zip(going, after, strict=True):
            states[j].append(one)
    return states
