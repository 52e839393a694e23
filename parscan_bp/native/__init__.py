"""Loops as one native function on a CPU.

XLA steps through the operations of a loop's body one after the other, at microseconds a step
whatever is in it. `scan` has the contract of `jax.lax.scan`; where a step is made of elementwise
functions of numbers, and of products with matrices that do not change, all steps are one function
of LLVM, made by llvmlite, which XLA calls by its FFI.

    call       the contract, and how it is traced, mapped, differentiated and compiled
    program    what a step does, level by level
    llvm/      the function: compiled, under a name that is a hash of what it does
"""

from parscan_bp.native.available import check_available as check_available
from parscan_bp.native.available import is_available as is_available
from parscan_bp.native.call import scan as scan
from parscan_bp.native.call import unsupported as unsupported
