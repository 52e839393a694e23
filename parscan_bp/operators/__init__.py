"""Operators: stacks of linear maps that keep their structure, and their algebra."""

from parscan_bp.operators.algebra import (
    compose,
    compose_cost,
    for_trees,
    identity_like,
    to_scaled,
)
from parscan_bp.operators.algebra import (
    compose_shape as compose_shape,
)
from parscan_bp.operators.algebra import (
    to_structure as to_structure,
)
from parscan_bp.operators.banded import Banded
from parscan_bp.operators.base import Cost as Cost
from parscan_bp.operators.base import Operator, Structure
from parscan_bp.operators.block_diagonal import BlockDiagonal
from parscan_bp.operators.block_sparse import BlockSparse
from parscan_bp.operators.block_triangular import BlockTriangular
from parscan_bp.operators.channel_dense import ChannelDense
from parscan_bp.operators.channel_slice import ChannelSlice
from parscan_bp.operators.convolution import Convolution
from parscan_bp.operators.dense import Dense
from parscan_bp.operators.diagonal import Diagonal
from parscan_bp.operators.explicit import Explicit
from parscan_bp.operators.factored import Factored
from parscan_bp.operators.identity import Identity
from parscan_bp.operators.lattice import join
from parscan_bp.operators.lattice import structure_of as structure_of
from parscan_bp.operators.low_rank import LowRankUpdate
from parscan_bp.operators.matrix_free import MatrixFree
from parscan_bp.operators.product import Product
from parscan_bp.operators.scaled import Scaled
from parscan_bp.operators.scaled import ScaledVector as ScaledVector
from parscan_bp.operators.selection import Selection
from parscan_bp.operators.sparse import Sparse
from parscan_bp.operators.stacking import concatenate, stack
from parscan_bp.operators.sum import Sum

__all__ = [
    "Banded",
    "BlockDiagonal",
    "BlockSparse",
    "BlockTriangular",
    "ChannelDense",
    "ChannelSlice",
    "Convolution",
    "Dense",
    "Diagonal",
    "Explicit",
    "Factored",
    "Identity",
    "LowRankUpdate",
    "MatrixFree",
    "Operator",
    "Product",
    "Scaled",
    "Selection",
    "Sparse",
    "Structure",
    "Sum",
    "compose",
    "compose_cost",
    "concatenate",
    "for_trees",
    "identity_like",
    "join",
    "stack",
    "to_scaled",
]
