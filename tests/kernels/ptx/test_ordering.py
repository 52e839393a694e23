"""Each barrier, fence and wait of a compiled kernel is needed, or is known not to be.

JAX's simulation takes the threads of a warpgroup for one: it misses what is missing between them.
"""

import pytest

from tests.kernels.ptx import cases, ordering
from tests.kernels.ptx.execute import executing
from tests.kernels.ptx.test_executed import REASON

pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

# What is there without need belongs to statements of JAX that have more than one part. Its first
# barrier is for mbarriers; its wait for copies out ends in a barrier, the last one too.
FIRST = "barrier 1"
LANES = {FIRST}
COLUMNS: set[str] = set()
SWEEP = {"barrier 5"}
REDUCE = {"barrier 6"}
APART = {"barrier 4"}
APART_BACKWARD = {"barrier 5"}
FORWARD = {"barrier 5"}
BACKWARD = {"barrier 6"}

# Loops are longer than copies are ahead, and are not unrolled.
SCANS = [
    (("dense", 7, 3, 4, "bfloat16", 3), 0, "lanes_reduce", LANES),
    (("dense", 7, 3, 4, "bfloat16", 3), 2, "lanes_sweep", LANES),
    (("weighted", 7, 2, 4, "bfloat16", 3), 0, "column_reduce", COLUMNS),
    (("dense", 12, 2, 12, "float32", 6), 0, "tile_reduce", REDUCE),
    (("weighted", 12, 1, 46, "float32", 6), 0, "tile_reduce", REDUCE),
    (("gru", 12, 1, 36, "float32", 6), 0, "tile_reduce", REDUCE),
    (("dense", 40, 9, 20, "float32", 40), 0, "tile_sweep", SWEEP),
    (("weighted", 42, 2, 12, "float32", 42), 0, "tile_sweep", SWEEP),
    (("gru", 41, 2, 28, "float32", 41), 0, "tile_sweep", SWEEP),
    (("lstm", 14, 1, 66, "float32", 14), 0, "tile_sweep", SWEEP),
]
RECURRENCES = [
    (("elman", "forward", 42, 2, 20, "float32"), APART),
    (("gru", "forward", 34, 1, 32, "float32"), FORWARD),
    (("elman", "forward", 34, 1, 148, "float32"), FORWARD),
    (("elman", "backward", 34, 5, 20, "float32"), APART_BACKWARD),
    (("elman", "backward", 34, 2, 40, "float32"), BACKWARD),
    (("gru", "backward", 34, 1, 64, "float32"), FORWARD),
    (("lstm", "of_last", 34, 2, 9, "bfloat16"), BACKWARD),
]


def _name(value):
    if isinstance(value, set):
        return f"spare{len(value)}"
    return "-".join(map(str, value)) if isinstance(value, tuple) else None


@pytest.mark.parametrize(("case", "number", "name", "spare"), SCANS, ids=_name)
def test_scans(case, number, name, spare):
    with executing() as launches:
        cases.scan(*case)
    assert launches[number].name == name
    _check(launches[number], spare)


@pytest.mark.parametrize(("case", "spare"), RECURRENCES, ids=_name)
def test_recurrences(case, spare):
    with executing() as launches:
        cases.recurrence(*case).check()
    _check(launches[0], spare)


def _check(launch, spare):
    assert set(ordering.missed(launch)) == spare
    assert len(ordering.statements(launch)) > len(spare) or spare == LANES
