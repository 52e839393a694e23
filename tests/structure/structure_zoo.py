"""Step functions with the structure that `find_structure` is expected to find in each."""

import zoo_axes as zoo_axes
import zoo_cells as zoo_cells
import zoo_control as zoo_control
from zoo_case import ZOO as ZOO
