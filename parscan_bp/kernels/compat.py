"""What differs between versions of JAX, and everything taken from its unstable modules.

The kernels are written for Mosaic GPU through ``plgpu.kernel`` with Lane semantics: under
Warpgroup semantics, the default, the layouts that the tile kernels need cannot be inferred.
jax 0.10 has another form of this interface and is not supported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl

from parscan_bp.kernels.tiles import ceil

plgpu: Any
fragmented_array: Any
utils: Any
try:
    plgpu = importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    fragmented_array = importlib.import_module("jax.experimental.mosaic.gpu.fragmented_array")
    utils = importlib.import_module("jax.experimental.mosaic.gpu.utils")
except ImportError as error:  # a jaxlib built without the GPU dialects
    plgpu = fragmented_array = utils = None
    _IMPORT_ERROR: str | None = str(error)
else:
    _IMPORT_ERROR = None

MIN_JAX = (0, 11)


def missing() -> str | None:
    """Why the kernels cannot be used with this JAX; ``None`` if they can."""
    if jax.__version_info__[:2] < MIN_JAX:
        return f"the GPU kernels need jax >= 0.11; this is jax {jax.__version__}"
    if _IMPORT_ERROR is not None:
        return f"this jaxlib has no Mosaic GPU: {_IMPORT_ERROR}"
    return None


def unusable(interpret: bool) -> str | None:
    """Why the kernels cannot run here, simulated or not; ``None`` if they can."""
    reason = missing()
    if reason is not None or interpret:
        return reason
    backend = jax.default_backend()
    if backend != "gpu":
        return (
            f"the default backend is {backend}, the kernels need a CUDA GPU "
            "(interpret=True simulates them)"
        )
    capability = str(getattr(jax.devices()[0], "compute_capability", "9.0"))
    if not capability[:1].isdigit() or float(capability) < 9:
        return f"the kernels need an NVIDIA GPU of capability 9.0, this one says {capability}"
    return None


def interpreter(*, detect_races: bool = False) -> Any:
    """The ``interpret`` argument that runs a kernel on any device, simulated.

    Args:
      detect_races: also report unordered accesses to shared memory (raised by jax >= 0.12,
        printed by 0.11).
    """
    return plgpu.InterpretGPUParams(detect_races=detect_races, inline_mgpu="ignore")


def kernel(
    body: Callable,
    *,
    name: str,
    out: Any,
    grid: Mapping[str, int],
    scratch: Sequence[Any] = (),
    interpret: Any = None,
) -> Callable:
    """``body(*inputs, *outputs, *scratch)`` as a function of arrays.

    Args:
      body: the kernel, written for one warpgroup of 128 threads. Barriers that it names itself,
        `plgpu.commit_smem` and `plgpu.wait_smem_to_gmem`, order all that its threads write and
        read of shared memory: none is added.
      name: the kernel's name in the program.
      out: shapes and dtypes of the outputs.
      grid: sizes of the grid's axes by name.
      scratch: shared memory and barriers.
      interpret: ``None`` for the GPU, or `interpreter`'s result.
    """
    chosen = {} if interpret is None else {"interpret": interpret}
    return plgpu.kernel(
        body,
        out_type=out,
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        scratch_types=scratch,
        kernel_name=name,
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane,
            unsafe_no_auto_barriers=True,
        ),
        **chosen,
    )


def tiled_layout(*tiles, warp: tuple[int, ...], lane: tuple[int, ...]) -> Any:
    """A register layout by nested tiles; ``warp`` and ``lane`` name the dimensions dealt out."""
    layout = fragmented_array.TiledLayout(
        fragmented_array.Tiling(tiles),
        warp_dims=warp,
        lane_dims=lane,
        vector_dim=-1,
        _check_canonical=False,
    ).canonicalize()
    return plgpu.Layout.TILED(
        layout.tiling,
        warp_dims=layout.warp_dims,
        lane_dims=layout.lane_dims,
        vector_dim=layout.vector_dim,
    )


def load(ref: Any, layout: Any) -> Any:
    """Shared memory into registers of ``layout``."""
    return plgpu.load(ref, layout=layout, optimized=False)


def fetch(source: Any, target: Any, barrier: Any) -> None:
    """Starts a copy into shared memory; what lies outside of ``source`` arrives as zeros."""
    plgpu.copy_gmem_to_smem(source, target, barrier, oob_mode=plgpu.OOBFillMode.ZEROS)


def room(shape: Sequence[int], box: Sequence[int]) -> tuple[int, ...]:
    """The shape that an output needs for copies of ``box``: what may be left of it is padding.

    A copy is clipped where the output ends, unless it is contiguous there: then it is made as one
    run of bytes, and what is past the end of a row lands in the next one. (JAX's simulation clips
    that one, too.)
    """
    return tuple(map(ceil, shape, box)) if is_contiguous(shape, box) else tuple(shape)


def is_contiguous(shape: Sequence[int], box: Sequence[int]) -> bool:
    """Whether a box of an array is one run of memory."""
    stride = run = 1
    for size, part in zip(reversed(shape), reversed(box), strict=True):
        if part > 1 and stride != run:
            return False
        stride, run = stride * size, run * part
    return True


def store(source: Any, target: Any, *index: Any) -> None:
    """Starts a copy from shared memory to ``target[index]``, an output that has `room` for it.

    Raises:
      AssertionError: it has not.
    """
    box = [int(i.size) if isinstance(i, pl.Slice) else 1 for i in index]
    assert room(target.shape, box) == target.shape, (target.shape, box)
    plgpu.copy_smem_to_gmem(source, target.at[index])


def join_threads(*, of_warp: bool = False) -> None:
    """All threads, or those of a warp, wait for one another: then each may read what another wrote.

    Copies out may not: for those it takes `plgpu.commit_smem`, which is slower. A simulation takes
    the threads for one, and leaves this out.
    """

    @plgpu.inline_mgpu()
    def barrier(_: Any) -> None:
        utils.warp_barrier() if of_warp else utils.warpgroup_barrier()

    barrier()


def from_zero(index: Any, size: int) -> Any:
    """The slice 0..size, which may leave the array: static slices may not.

    Args:
      index: any non-negative traced integer.
      size: a multiple of what a tile needs.
    """
    return pl.ds(jax.numpy.minimum(index, 0), size)
