"""Arbitrary computation graphs as chains of their live sets, their derivatives a solver's."""

from parscan_bp.graph.api import graph as graph
from parscan_bp.graph.api import init_graph as init_graph
from parscan_bp.graph.explain import GraphExplanation as GraphExplanation
from parscan_bp.graph.explain import explain_graph as explain_graph
from parscan_bp.graph.node import Node as Node

__all__ = ["GraphExplanation", "Node", "explain_graph", "graph", "init_graph"]
