"""Programs compiled for sm_90a, without a GPU.

Needs jax >= 0.11 with its CUDA plugin and compiler (``jax[cuda13]``), and ``JAX_PLATFORMS=cpu``.
"""

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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


def compiled(function, shapes):
    """The function, compiled for arguments of these shapes."""
    topology = topologies.get_topology_desc(platform="cuda", target_config=HOPPER, topology="1x1x1")
    mesh = Mesh(np.array(topology.devices), ("x",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    run = jax.jit(function, in_shardings=everywhere, out_shardings=everywhere)
    return run.trace(*shapes).lower(lowering_platforms=("cuda",)).compile()
