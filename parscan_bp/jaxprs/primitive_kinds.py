"""The primitives of JAX by kind: the one table of their names.

What a program does with a primitive that is in none of these sets is the careful thing.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- calls and control flow -----------------------------------------------------------------------

PLAIN_CALLS = _names("jit closed_call")
CALLS = PLAIN_CALLS | {"remat2"}
"""They only call the jaxpr in their parameters: same operands, same results."""

FOREIGN_CALLS = _names("custom_jvp_call custom_vjp_call")
"""Calls with a derivative of the user's, which need not be that of their values."""

CUSTOM_CALLS = FOREIGN_CALLS | {"call_with_rule"}
"""Calls that bring their own derivative: their jaxpr tells values, not derivatives."""

FORWARD_CALLS = CUSTOM_CALLS - {"custom_vjp_call"}
"""Those whose derivative has a forward mode."""

CONTROL_FLOW = _names("cond scan while")

CALLBACKS = _names("pure_callback io_callback ffi_call")

# --- arithmetic -----------------------------------------------------------------------------------

ELEMENTWISE = _names(
    """
    abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp complex
    conj convert_element_type copy cos cosh digamma div erf erf_inv erfc exp exp2 expm1
    igamma igamma_grad_a igammac imag integer_pow lgamma log log1p log2 logistic max min mul name
    neg nextafter one_minus_square polygamma polynomial pow real
    reduce_precision regularized_incomplete_beta rem rsqrt select_n sharding_constraint sign sin
    sinh sqrt square sub tan tanh zeta
    """
)
"""Functions of each number by itself."""

PREDICATES = _names("and eq eq_to ge gt is_finite le le_to lt lt_to ne not or xor")
"""Those that answer with yes or no, or with bits, and have no derivative."""

ARITHMETIC = _names(
    "abs add add_any and clamp convert_element_type copy div eq ge gt integer_pow le lt max min "
    "mul ne neg not one_minus_square or select_n sign square stop_gradient sub xor"
)
"""As fast to do again as the result is to read."""

SUMS = _names("add add_any sub")
MULTIPLICATIONS = _names("div mul neg")
SQUASHING = _names("exp logistic tanh")
"""Of which the gates of a recurrent cell are made."""

ZERO_DERIVATIVE = _names("stop_gradient floor ceil round")
"""Float in, float out, and a derivative that JAX takes to be zero."""

# --- what moves numbers ---------------------------------------------------------------------------

TAKES = _names("split slice dynamic_slice unstack")
"""Parts of an operand."""

RESHAPES = _names("reshape squeeze transpose concatenate")
"""Each number of the operands once."""

MOVES = TAKES | RESHAPES | _names("broadcast_in_dim expand_dims rev stack tile")
"""Every number of the result is one of an operand's."""

REDUCTIONS = _names("reduce_sum reduce_max reduce_min")

NO_EXCHANGE = _names("axis_index pvary pcast")
"""Of those that name a mesh axis."""

VIEWS = _names("broadcast_in_dim reshape squeeze stop_gradient copy pvary")
"""They cost a loop nothing, and their results may be larger than what they are of."""

LINEAR = MOVES | _names(
    """
    copy cumsum dynamic_update_slice gather name pad pvary pcast reduce_sum reduce_window_sum
    scatter scatter-add sharding_constraint stop_gradient
    """
)
"""Sums of what they are given, apart from indices."""

PRODUCTS = _names("dot_general conv_general_dilated")
"""Linear in each of two operands."""

BENT = _names(
    "abs atan2 clamp convert_element_type max min nextafter reduce_precision rem select_n sign"
)
"""Elementwise, with kinks, jumps or cuts."""

_FACTORS = _names("cholesky custom_linear_solve fft lu triangular_solve")
_ALONG = _names("cumlogsumexp cumprod reduce_prod")
SMOOTH = (ELEMENTWISE - BENT) | LINEAR | PRODUCTS | _FACTORS | _ALONG
"""Differentiable where they are finite; the row exchanges of `lu` cancel in what is made of it."""

HOLOMORPHIC = _names(
    "add sub mul div neg exp log sin cos tan sinh cosh tanh integer_pow dot_general "
    "broadcast_in_dim reshape squeeze transpose concatenate slice reduce_sum copy rev"
)
"""Complex-differentiable in every operand."""
