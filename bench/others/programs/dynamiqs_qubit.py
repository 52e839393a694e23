"""dynamiqs: a driven qubit by Expm (piecewise constant), 100 steps; infidelity."""

import dynamiqs as dq
import jax.numpy as jnp
import numpy as np

dq.set_precision("double")
dq.set_progress_meter(False)


def program(method="Expm"):
    def loss(amplitudes, detuning):
        times = jnp.linspace(0.0, 5.0, 101)
        drive = dq.pwc(times, amplitudes, dq.sigmax())
        h = drive + detuning * dq.sigmaz()
        how = getattr(dq.method, method)()
        result = dq.sesolve(h, dq.basis(2, 0), times, exp_ops=[dq.sigmaz()], method=how)
        return jnp.mean(result.expects.real**2)

    return loss, (np.linspace(0.1, 1.0, 100), np.array(0.2))
