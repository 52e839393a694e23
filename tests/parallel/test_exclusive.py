"""The scan over devices: what enters each, of maps that do not commute, against NumPy."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from parscan_bp.devices.exclusive import METHODS, exclusive_scan
from parscan_bp.devices.order import DeviceOrder
from parscan_bp.operators import Dense


def check(devices):
    """By every method, in both directions, in one program."""
    rng = np.random.default_rng(devices)
    matrices = rng.normal(size=(devices, 2, 2)).astype(np.float32)
    b = rng.normal(size=(devices, 2)).astype(np.float32)
    mesh, spec = Mesh(np.array(jax.devices()[:devices]), ("time",)), PartitionSpec("time")
    cases = [(method, backward) for method in METHODS for backward in (False, True)]

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def run(matrices, b):
        maps = Dense(matrices[0]), b[0]
        return [
            exclusive_scan(DeviceOrder("time", back), maps, method)[None] for method, back in cases
        ]

    for (method, backward), got in zip(cases, run(matrices, b), strict=True):
        want, v = np.zeros((devices, 2)), np.zeros(2)
        for p in range(devices)[::-1] if backward else range(devices):
            want[p], v = v, matrices[p].astype(float) @ v + b[p]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"{method} {backward}")


def test_what_enters_each_device_has_passed_all_before(run_on_devices):
    """Of eight, doubling joins what it has joined before; of five and seven, some lie beyond."""
    for devices in (5, 7, 8):
        run_on_devices(check, 8, (devices,))
