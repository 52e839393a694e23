"""Makes `import bench` find the repository's package, whatever folder pytest is started in."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
