"""The GPU kernels against cuDNN, lax.scan, the pure-JAX solvers and floors; needs a GPU.

One command measures the grid of figure 8 and tables 4 to 6 of the BPPSA paper and writes one
JSON file and two figures. Times are of the device: calls are queued and the last one awaited.
Gradients are those of weights and inputs on every side, no product is rounded to TF32 on any,
and a contender whose gradients are not those of `jax.lax.scan` gets no time.

    python -m bench gpu --record         the grid, as far as it gets in 8 minutes
    python -m bench gpu --quick          four points
    python -m bench gpu --first-run      tests, grid and racecheck in turn, see docs/gpu.md
    python -m bench gpu --rehearse       every code path but cuDNN's and the kernels', on any device

PyTorch is the user's own; without it the two cuDNN contenders are refused, and that is recorded.
"""

from bench.gpu.suite import main as main
