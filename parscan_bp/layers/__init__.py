"""Layers of different sizes, each with an analytic transposed Jacobian and pullback."""

from parscan_bp.layers.base import Layer as Layer
from parscan_bp.layers.check import check_layer as check_layer
from parscan_bp.layers.convolution import Conv as Conv
from parscan_bp.layers.convolution import ConvTranspose as ConvTranspose
from parscan_bp.layers.dropout import Dropout as Dropout
from parscan_bp.layers.elementwise import Elementwise as Elementwise
from parscan_bp.layers.elementwise import ReLU as ReLU
from parscan_bp.layers.elementwise import Sigmoid as Sigmoid
from parscan_bp.layers.elementwise import Tanh as Tanh
from parscan_bp.layers.function import Coloured as Coloured
from parscan_bp.layers.function import Function as Function
from parscan_bp.layers.initial import init as init
from parscan_bp.layers.jacobian import jacobian_bcoo as jacobian_bcoo
from parscan_bp.layers.joint_function import JointFunction as JointFunction
from parscan_bp.layers.joints import Add as Add
from parscan_bp.layers.joints import Concatenate as Concatenate
from parscan_bp.layers.joints import Joint as Joint
from parscan_bp.layers.joints import Multiply as Multiply
from parscan_bp.layers.linear import Flatten as Flatten
from parscan_bp.layers.linear import Linear as Linear
from parscan_bp.layers.normalisation import BatchNorm as BatchNorm
from parscan_bp.layers.normalisation import LayerNorm as LayerNorm
from parscan_bp.layers.normalisation import Softmax as Softmax
from parscan_bp.layers.pooling import AveragePool as AveragePool
from parscan_bp.layers.pooling import MaxPool as MaxPool
from parscan_bp.layers.registry import LAYERS as LAYERS
from parscan_bp.layers.registry import as_layer as as_layer
from parscan_bp.layers.registry import register as register
from parscan_bp.layers.residual import Residual as Residual
from parscan_bp.layers.stack import activations as activations
from parscan_bp.layers.stack import adjoint_operators as adjoint_operators

__all__ = [
    "LAYERS",
    "Add",
    "AveragePool",
    "BatchNorm",
    "Coloured",
    "Concatenate",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Elementwise",
    "Flatten",
    "Function",
    "Joint",
    "JointFunction",
    "Layer",
    "LayerNorm",
    "Linear",
    "MaxPool",
    "Multiply",
    "ReLU",
    "Residual",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "activations",
    "adjoint_operators",
    "as_layer",
    "check_layer",
    "init",
    "jacobian_bcoo",
    "register",
]
