"""Native functions that XLA calls by name."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import threading
from typing import Any

import jax
import llvmlite.binding as llvm

from parscan_bp.native.llvm.function import NAME, function_of
from parscan_bp.native.program import Loop

_KEPT: list[Any] = []
_REGISTERING = threading.Lock()


@functools.cache
def machine() -> Any:
    """This machine, as LLVM knows it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    named = features.flatten() + ",-prefer-256-bit"
    target = llvm.Target.from_default_triple()
    made = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=named, opt=3)
    return made, features


def lanes(dtype: str) -> int:
    """Numbers of a register."""
    _, features = machine()
    bits = 512 if features.get("avx512f") else 256 if features.get("avx2") else 128
    return bits // (32 if dtype == "float32" else 64)


def target_of(loop: Loop) -> tuple[str, int]:
    """Name of a function that XLA may call for this loop, and the size of its scratch memory."""
    text, scratch = text_of(loop)
    return _registered(text), scratch


def text_of(loop: Loop) -> tuple[str, int]:
    """LLVM's text of a loop for this machine, and the size of its scratch memory."""
    return function_of(loop, lanes(loop.dtype))


def _registered(text: str) -> str:
    """The name of the function, which XLA knows from here on: it takes one of a name only."""
    with _REGISTERING:
        return _once(text)


@functools.cache
def _once(text: str) -> str:
    name = "parscan_bp_" + hashlib.sha256(text.encode()).hexdigest()[:32]
    module = llvm.parse_assembly(text)
    module.verify()
    target, _ = machine()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    _KEPT.append((engine, module))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    address = engine.get_function_address(NAME)
    jax.ffi.register_ffi_target(name, new(address, None, None), platform="cpu")
    return name
