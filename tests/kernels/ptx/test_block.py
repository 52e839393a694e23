"""The machine that executes kernels, on programs that are written by hand."""

import numpy as np
import pytest

from tests.kernels.ptx.block import THREAD, Block
from tests.kernels.ptx.program import parse

# Each thread writes its number to the place of its lowest bits, then reads another one's.
NEIGHBOURS = """
.visible .entry neighbours(.param .u64 .ptr neighbours_param_0)
{{
  .reg .b32 %r<9>;
  .shared .align 16 .b8 __dynamic_shmem__0;
  ld.param.b64 %rd1, [neighbours_param_0];
  mov.u32 %r1, %tid.x;
  mov.b64 %rd2, __dynamic_shmem__0;
  and.b32 %r2, %r1, {mask};
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd2, %rd3;
  st.shared.b32 [%rd4], %r1;
  setp.ge.u32 %p1, %r1, 128;
  {{
    @%p1 bra DONE;
    DONE:
  }}
  {barrier}
  xor.b32 %r3, %r2, {neighbour};
  mul.wide.u32 %rd5, %r3, 4;
  add.s64 %rd6, %rd2, %rd5;
  ld.shared.b32 %r4, [%rd6];
  mul.wide.u32 %rd7, %r1, 4;
  add.s64 %rd8, %rd1, %rd7;
  st.global.b32 [%rd8], %r4;
  ret;
}}
"""
BARRIER = "bar.sync 0;"


OF_WARP = "bar.warp.sync -1;"


def _run(mask=127, barrier=BARRIER, neighbour=1):
    text = NEIGHBOURS.format(mask=mask, barrier=barrier, neighbour=neighbour)
    out = np.full(128, -1, np.int32)
    block = Block(parse(text), [out], [], (0, 0, 0))
    block.run()
    return out, {race.kind for race in block.shared.races}


@pytest.mark.parametrize(
    "how", [{}, {"neighbour": 64}, {"barrier": OF_WARP}, {"barrier": OF_WARP, "neighbour": 31}]
)
def test_threads_that_wait_do_not_race(how):
    out, races = _run(**how)
    np.testing.assert_array_equal(out, THREAD ^ how.get("neighbour", 1))
    assert not races


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"barrier": ""}, {"RAW"}),
        ({"barrier": OF_WARP, "neighbour": 32}, {"RAW"}),
        ({"mask": 63}, {"WAW"}),
        ({"mask": 63, "barrier": ""}, {"WAW", "RAW"}),
    ],
)
def test_threads_that_race_are_found(how, found):
    assert _run(**how)[1] == found
