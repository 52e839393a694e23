"""Primitives of JAX that this package adds, and how their tangents say that they are zero."""
