"""jaxley: one branch of 3 compartments with HH channels, 200 steps of 0.025 ms; squared voltage."""

import jax.numpy as jnp
import jaxley as jx
from jaxley.channels import HH


def program(levels=None):
    comp = jx.Compartment()
    cell = jx.Cell(jx.Branch(comp, ncomp=3), parents=[-1])
    cell.insert(HH())
    current = jx.step_current(i_delay=0.5, i_dur=2.0, i_amp=0.5, delta_t=0.025, t_max=5.0)
    cell.branch(0).comp(0).stimulate(current)
    cell.branch(0).comp(2).record()
    cell.make_trainable("HH_gNa")
    cell.make_trainable("radius")
    params = cell.get_parameters()

    def loss(params):
        v = jx.integrate(cell, params=params, delta_t=0.025, checkpoint_lengths=levels)
        return jnp.mean((v / 50.0) ** 2)

    return loss, (params,)
