"""The primitives of JAX by kind: the one table of their names.

What a program does with a primitive that is in none of these sets is the careful thing.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- calls and control flow -----------------------------------------------------------------------

PLAIN_CALLS = _names("jit closed_call native_call")
CALLS = PLAIN_CALLS | {"remat2"}
"""They only call the jaxpr in their parameters: same operands, same results."""

FOREIGN_CALLS = _names("custom_jvp_call custom_vjp_call")
"""Calls with a derivative of the user's, which need not be that of their values."""

OWN_CALLS = _names("call_with_rule")
"""Calls with a derivative that this package makes, which is that of their values."""

CUSTOM_CALLS = FOREIGN_CALLS | OWN_CALLS
"""Calls that bring their own derivative: their jaxpr tells values, not derivatives."""

FORWARD_CALLS = CUSTOM_CALLS - {"custom_vjp_call"}
"""Those whose derivative has a forward mode."""

CONTROL_FLOW = _names("cond scan while")

HI_PRIMITIVE = "call_hi_primitive"
"""The one primitive of all operations that are a `HiPrim` (jax 0.12)."""

HI_PRIMITIVES = {
    "CustomJVPTraced": "custom_jvp_call",
    "CustomRoot": "custom_jvp_call",
    "CustomVJPTraced": "custom_vjp_call",
    "RematTraced": "remat2",
    "CheckpointName": "name",
    "CheckpointNameFwd": "name",
    "Frexp": "frexp",
    "Ldexp": "ldexp",
    "Einshape": "closed_call",
    "Einsum": "closed_call",
    "Nonzero": "closed_call",
    "SearchSorted": "closed_call",
    "_RootLinearMap": "closed_call",
}
"""JAX's own among them by class, and the kind of primitive that each is, here or in jax 0.10."""

CALLBACKS = _names("pure_callback io_callback ffi_call")

NOT_REPEATABLE = _names("rng_uniform")
"""Their results differ from one evaluation to the next."""

# --- arithmetic -----------------------------------------------------------------------------------

ELEMENTWISE = _names(
    """
    abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp complex
    conj convert_element_type copy cos cosh digamma div erf erf_inv erfc exp exp2 expm1
    igamma igamma_grad_a igammac imag integer_pow ldexp lgamma log log1p log2 logistic max min mul
    name neg nextafter one_minus_square polygamma polynomial pow real
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
DIFFERENCES = _names("sub")
SELECTIONS = _names("select_n")

ZERO_DERIVATIVE = _names("stop_gradient floor ceil round")
"""Float in, float out, and a derivative that JAX takes to be zero."""

# --- what moves numbers ---------------------------------------------------------------------------

TAKES = _names("split slice dynamic_slice unstack")
"""Parts of an operand."""

ROW_READS = _names("dynamic_slice gather")
ROW_WRITES = _names(
    "dynamic_update_slice scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub"
)
"""Of an array, at indices; the first operand is the array."""

RESHAPES = _names("reshape squeeze transpose concatenate")
"""Each number of the operands once."""

MOVES = TAKES | RESHAPES | _names("broadcast_in_dim expand_dims rev stack tile")
"""Every number of the result is one of an operand's."""

REDUCTIONS = _names("reduce_sum reduce_max reduce_min")

UNROUNDED = (
    MOVES
    | PREDICATES
    | _names("abs clamp copy cummax cummin dynamic_update_slice gather max min neg pad reduce_max")
    | _names("reduce_min reduce_window_max reduce_window_min select_n sort stop_gradient top_k")
)
"""Every number of the result is one of an operand's, but for its sign, or an answer."""

EXTREMA = _names(
    "abs clamp cummax cummin custom_jvp_call max min rem reduce_max reduce_min reduce_window_max "
    "reduce_window_min sort top_k"
)
"""Their derivative compares, or may."""

STEPS = ZERO_DERIVATIVE - {"stop_gradient"} | {"sign"}
"""Floats in, floats out, constant but for jumps."""

COMPARING = STEPS | _names("rem select_and_gather_add select_and_scatter_add")
"""Floats in, floats out, by a comparison."""

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

SOLVES = _names("cholesky triangular_solve")
"""With small matrices, of many steps at once, as fast as their products."""

_FACTORS = _names("cholesky custom_linear_solve fft lu triangular_solve")
_ALONG = _names("cumlogsumexp cumprod reduce_prod")
SMOOTH = (ELEMENTWISE - BENT) | LINEAR | PRODUCTS | _FACTORS | _ALONG
"""Differentiable where they are finite; the row exchanges of `lu` cancel in what is made of it."""

HOLOMORPHIC = _names(
    "add sub mul div neg exp log sin cos tan sinh cosh tanh integer_pow dot_general "
    "broadcast_in_dim reshape squeeze transpose concatenate slice reduce_sum copy rev"
)
"""Complex-differentiable in every operand."""

# --- batches --------------------------------------------------------------------------------------

OWN = OWN_CALLS | _names(
    "largest_of_mapped linear_solve look mapped_alike mapped_as pushforward row_product"
)
"""The primitives of this package."""

DRAWS = _names("random_bits random_fold_in random_gamma random_seed random_split")
"""What makes random numbers, or keys, of keys. Whether it commutes with `jax.vmap` is a matter of
the keys: those of "rbg" and "unsafe_rbg" draw other numbers in a batch."""

COLLECTIVES = _names(
    """
    all_gather all_gather_invariant all_gather_reduced all_to_all axis_index pbroadcast pcast pmax
    pmin ppermute preduced psum psum_invariant pvary ragged_all_to_all reduce_scatter
    reduced_vary_cast unreduced_pmax unreduced_pmin unreduced_psum unreduced_reduce_scatter
    vary_unreduced_cast
    """
)
"""They name the axis that they work along, which no axis of steps is."""

BATCHED = (
    CALLS
    | CUSTOM_CALLS
    | CONTROL_FLOW
    | ELEMENTWISE
    | PREDICATES
    | ARITHMETIC
    | ZERO_DERIVATIVE
    | MOVES
    | REDUCTIONS
    | VIEWS
    | COLLECTIVES
    | OWN
    | _names(
        """
        call shard_map custom_lin custom_linear_solve pallas_call optimization_barrier device_put
        layout_constraint with_memory_space_constraint xla_metadata_call xla_metadata_value
        inspect_sharding reshard platform_index tie zeros_like

        bitcast_convert_type clz population_count shift_left shift_right_arithmetic
        shift_right_logical mulhi from_edtype to_edtype random_clone random_unwrap random_wrap
        iota_2x32_shape threefry2x32 threefry4x32 philox2x32 philox4x32

        argmax argmin broadcast_to cumlogsumexp cummax cummin cumprod cumsum dynamic_update_slice
        empty frexp gather iota ldexp pad reduce reduce_and reduce_or reduce_prod reduce_window
        reduce_window_max reduce_window_min reduce_window_sum reduce_xor scatter scatter-add
        scatter-max scatter-min scatter-mul scatter-sub select_and_gather_add
        select_and_scatter_add sort top_k

        conv_general_dilated dot_general fft ragged_dot_general scaled_dot scaled_matmul
        scaled_matmul_wrapper dot_product_attention_bwd_wrapper dot_product_attention_fwd_wrapper
        bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices
        bcoo_spdot_general bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general
        bcsr_extract bcsr_fromdense bcsr_todense todense

        cholesky eig eigh geqp3 geqrf hessenberg householder_product lu
        lu_pivots_to_permutation ormqr qr schur svd symmetric_product triangular_solve tridiagonal
        tridiagonal_solve
        """
    )
)
"""Known to commute with `jax.vmap`: an entry of a batch is what it is by itself. Calls do if what
they call does."""
