"""A file with arrays and what they are; it is there whole, or it is not."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.arguments import described
from parscan_bp.replacing import replacing
from parscan_bp.types import PyTree

VERSION = 1
_ABOUT = "about"

Entry = tuple[str, list[Any], list[Any]]
"""What it is, which one, its leaves."""


def write(path: str | os.PathLike, about: dict[str, Any], entries: Sequence[Entry]) -> None:
    """Writes a file in the place of the one that may be there, once it is complete.

    Args:
      path: of the file, an npz archive.
      about: what JSON can say.
      entries: leaves that are arrays, random keys or numbers.
    """
    arrays: dict[str, np.ndarray] = {}
    listed = []
    for name, which, leaves in entries:
        kinds = []
        for leaf in leaves:
            kind, array = _encoded(leaf)
            arrays[f"a{len(arrays)}"] = array
            kinds.append(kind)
        listed.append([name, which, kinds])
    text = json.dumps({"version": VERSION, **about, "entries": listed})
    arrays[_ABOUT] = np.frombuffer(text.encode(), np.uint8)
    with replacing(pathlib.Path(path)) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read(path: str | os.PathLike) -> tuple[dict[str, Any], list[Entry]]:
    """What `write` wrote.

    Raises:
      OSError: if there is no such file, or it may not be read.
      ValueError: if the file is none of `write`, damaged, or of another version.
    """
    # What is not there, or may not be read, is told by the system.
    with pathlib.Path(path).open("rb") as file:
        try:
            return _read(file)
        # What a damaged archive raises depends on which of its bytes are.
        except Exception as error:
            raise ValueError(
                f"path: {path} is no checkpoint of a pipeline: {type(error).__name__}: {error}"
            ) from error


def _read(file: BinaryIO) -> tuple[dict[str, Any], list[Entry]]:
    with np.load(file, allow_pickle=False) as archive:
        about = json.loads(archive[_ABOUT].tobytes())
        if about["version"] != VERSION:
            raise ValueError(f"version {about['version']}; {VERSION} is wanted")
        listed = about.pop("entries")
        arrays = (archive[f"a{i}"] for i in range(len(archive.files) - 1))
        entries = [
            (name, which, [_decoded(kind, next(arrays)) for kind in kinds])
            for name, which, kinds in listed
        ]
    return about, entries


def _encoded(leaf: Any) -> tuple[list[Any], np.ndarray]:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return ["key", str(jax.random.key_impl(leaf))], np.asarray(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    if array.dtype.isbuiltin == 1:
        return ["array"], array
    # bfloat16 and the like, which numpy's files do not know.
    raw = np.frombuffer(array.tobytes(), np.uint8)
    return ["raw", array.dtype.name, list(array.shape)], raw


def _decoded(kind: list[Any], array: np.ndarray) -> Any:
    if kind[0] == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=kind[1])
    if kind[0] == "raw":
        return np.frombuffer(array.tobytes(), jnp.dtype(kind[1])).reshape(kind[2])
    return array


def skeleton(name: str, tree: PyTree) -> Any:
    """The structure, shapes and dtypes of a pytree of dicts, lists, tuples and arrays, for JSON.

    Raises:
      TypeError: if there is another container in it.
    """
    if tree is None:
        return {"none": True}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: skeleton(name, value) for key, value in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [skeleton(name, value) for value in tree]}
    if not jax.tree_util.all_leaves([tree]):
        raise TypeError(
            f"{name}: got {described(tree)}; of batches of arrays, dicts with strings as keys, "
            "lists and tuples there are checkpoints"
        )
    struct = jax.eval_shape(lambda: tree) if hasattr(tree, "dtype") else np.asarray(tree)
    return {"array": [list(struct.shape), jnp.dtype(struct.dtype).name]}


def from_skeleton(made: Any) -> PyTree:
    """The pytree of `jax.ShapeDtypeStruct` whose `skeleton` it is."""
    ((kind, value),) = made.items()
    if kind == "none":
        return None
    if kind == "array":
        return jax.ShapeDtypeStruct(tuple(value[0]), jnp.dtype(value[1]))
    if kind == "dict":
        return {key: from_skeleton(each) for key, each in value.items()}
    return {"list": list, "tuple": tuple}[kind](from_skeleton(each) for each in value)
