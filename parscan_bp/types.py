"""The names that every layer of the package shares."""

from __future__ import annotations

from typing import Any

import jax

Array = jax.Array
PyTree = Any
