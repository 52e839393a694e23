"""From a step to its transposed Jacobian, and to what its parameters and inputs receive."""
