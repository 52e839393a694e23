"""The solvers by name, in the configurations that tests of all of them take."""

import jax
import jax.numpy as jnp

import parscan_bp as pb

DTYPE = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
SOLVERS = {
    "sweep": pb.Sweep(),
    "sweep3": pb.Sweep(chunk=3),
    "associative": pb.Associative(),
    "blelloch": pb.Blelloch(),
    "blelloch0": pb.Blelloch(up_levels=0),
    "blelloch2": pb.Blelloch(up_levels=2),
    "chunked": pb.Chunked(chunks=4),
    "chunked-by-a-sweep": pb.Chunked(4, inner=pb.Blelloch(0)),
    "corrections": pb.ChunkedCorrections(4, max_rounds=3),
    "corrections-stopped": pb.ChunkedCorrections(3, max_rounds=1),
    "scaled": pb.Blelloch(scaled=True),
    # Simulated; what no kernel takes, as doubles, is swept.
    "pallas": pb.Pallas("sequential", interpret=True, otherwise="sweep"),
    "planned": pb.Planned(),
    "cyclic": pb.CyclicReduction(),
    "jacobi": pb.Jacobi(),
    "richardson": pb.Richardson(),
    # Its tolerance is about the norm of the whole.
    "bicgstab": pb.BiCGStab(200, tol=80 * float(jnp.finfo(DTYPE).eps)),
    "truncated": pb.Truncated(1000),
    "sliding": pb.Truncated(1001, sliding=True),
}
