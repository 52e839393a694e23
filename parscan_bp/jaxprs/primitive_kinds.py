"""The primitives of JAX by kind: every set of their names that this package asks for."""

ELEMENTWISE = """
    abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp complex
    conj convert_element_type copy cos cosh digamma div erf erf_inv erfc exp exp2 expm1
    igamma igamma_grad_a igammac imag integer_pow lgamma log log1p log2 logistic max min mul name
    neg nextafter one_minus_square polygamma polynomial pow real
    reduce_precision regularized_incomplete_beta rem rsqrt select_n sharding_constraint sign sin
    sinh sqrt square sub tan tanh zeta
""".split()
