"""Compiles every kernel for sm_90a without a GPU: ``python compile_for_sm90.py``.

Needs jax >= 0.11 with its CUDA plugin and compiler (``jax[cuda13]``). What ptxas says about
registers and spills goes to the standard output, after a line ``## case`` for each case, and so does
the machine code where there is an nvdisasm.
"""

import os
import shutil

os.environ |= {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_PTXAS": "1"}
if shutil.which("nvdisasm") is not None:
    os.environ["MOSAIC_GPU_DUMP_SASS"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parscan_bp import cells, kernels

HOPPER = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 12 } runtime_version { major: 13 }
device_description_str: "NVIDIA H200"
"""
LENGTH, CHUNK = 64, 16
SCANS = {
    "diagonal": [(64, 16)],
    "dense": [(4, 64), (10, 64), (20, 4), (20, 16), (32, 4), (64, 4), (128, 4)],
    "weighted": [(20, 16), (20, 1024), (32, 1024), (45, 1024), (46, 4), (128, 4)],
    "gru": [(20, 1024), (26, 1024), (27, 4), (64, 4), (96, 4)],
    "lstm": [(20, 1024), (44, 1024), (46, 4), (96, 4)],
}
CELLS = {cells.Elman(): (224, 224), cells.GRU(): (128, 128), cells.LSTM(): (108, 100)}
"""The largest weights in float32 of each, forward and backward."""


def _shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def _scan(structure, size, batch):
    vectors = (LENGTH, batch, size)
    how = {"radices": [CHUNK], "reverse": True}
    if structure == "diagonal":
        flat = _shape(LENGTH, batch * size)
        return kernels.diagonal_scan, (flat, flat, _shape(batch * size)), how
    start = _shape(batch, size)
    if structure == "dense":
        return kernels.dense_scan, (_shape(*vectors, size), _shape(*vectors), start), how
    if structure == "weighted":
        args = _shape(size, size), _shape(*vectors), _shape(*vectors), start
        return kernels.weighted_scan, args, how
    count, states = {"gru": (3, 1), "lstm": (4, 2)}[structure]
    units = size // states
    args = (
        _shape(units, count * units),
        _shape(LENGTH, batch, count, states, units),
        _shape(LENGTH, batch, states, states, units),
        _shape(LENGTH, batch, states, units),
        _shape(batch, states, units),
    )
    return kernels.factored_scan, args, how


def _recurrence(rule, size, batch):
    args = (
        _shape(LENGTH, batch, rule.inputs, size),
        _shape(rule.operands, rule.products, size, size),
        _shape(batch, rule.outputs + rule.states, size),
    )
    return (lambda *args: kernels.fused_recurrence(rule, *args)), args, {}


def cases():
    """(name, function, shapes, options) of every compilation."""
    for structure, sizes in SCANS.items():
        for size, batch in sizes:
            yield f"{structure} {size} {batch}", *_scan(structure, size, batch)
    for cell, largest in CELLS.items():
        form = cell.fused()
        for rule, most in zip((form.forward_rule, form.backward_rule), largest, strict=True):
            for size, batch in [(20, 16), (32, 300), (64, 16), (most, 16)]:
                yield f"{rule.name} {size} {batch}", *_recurrence(rule, size, batch)


def main():
    topology = topologies.get_topology_desc(platform="cuda", target_config=HOPPER, topology="1x1x1")
    mesh = Mesh(np.array(topology.devices), ("x",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    for name, function, shapes, how in cases():
        print("##", name, flush=True)
        run = jax.jit(
            lambda *args: function(*args, **how), in_shardings=everywhere, out_shardings=everywhere
        )
        run.trace(*shapes).lower(lowering_platforms=("cuda",)).compile()
    print("## done", flush=True)


if __name__ == "__main__":
    main()
