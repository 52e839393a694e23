"""Static sparsity: where a matrix may be non-zero, and the symbolic half of sparse products."""

from parscan_bp.sparsity.pattern import Pattern
from parscan_bp.sparsity.plan import (
    BlockPlan,
    ProductPlan,
    count_products,
    multiply,
    plan_blocks,
    plan_product,
)

__all__ = [
    "BlockPlan",
    "Pattern",
    "ProductPlan",
    "count_products",
    "multiply",
    "plan_blocks",
    "plan_product",
]
