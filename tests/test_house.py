"""The layers of the package: imports go down only, and importing has no side effect."""

import ast
import graphlib
import importlib
import inspect
import pathlib
import subprocess
import sys

import parscan_bp
from tests.rooms import PACKAGE as ROOT
from tests.rooms import imports, room_of

LAYERS = [
    {"types", "device_kind", "originals", "arguments", "replacing", "measured", "status"},
    {"trees", "kernels", "store", "memory_limit"},
    {"jaxprs"},
    {"primitives", "structure", "sparsity"},
    {"operators", "native"},
    {"devices"},
    {"system", "planner", "deep_rnn"},
    {"report"},
    {"solvers", "cells", "layers"},
    {"linearise", "solve"},
    {"choice", "forward"},
    {"scan"},
    {"chain", "loops"},
    {"graph"},
    {"pipeline", "parallel"},
    {"explain", "diagnose", "adapters", "tuning", "installation", "conformance"},
    {"within"},
    {"nnx", "linen", "plots", "pruning"},
    {"__init__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def test_every_part_has_a_layer():
    parts = {room_of(p) for p in ROOT.rglob("*.py")}
    assert parts == set(LEVEL)


def test_imports_go_down_only():
    upward = []
    for path in ROOT.rglob("*.py"):
        here = room_of(path)
        for node, there in imports(path):
            if there != here and LEVEL[there] >= LEVEL[here]:
                upward.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {there}")
    assert not upward, upward


def test_no_files_import_each_other_in_a_circle():
    """Nor in what only a type checker reads."""
    above = {}
    for path in ROOT.rglob("*.py"):
        own = above.setdefault(path.relative_to(ROOT.parent), set())
        for node, _ in imports(path):
            folder = pathlib.Path(*node.module.split("."))
            parts = {folder / f"{alias.name}.py" for alias in node.names}
            files = {part for part in parts if (ROOT.parent / part).exists()}
            own |= files or {folder.with_suffix(".py")}
    list(graphlib.TopologicalSorter(above).static_order())


def test_imports_stand_at_the_top_of_their_file():
    late = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        for parent in ast.walk(ast.parse(path.read_text()))
        if isinstance(parent, ast.FunctionDef | ast.ClassDef)
        for node in ast.walk(parent)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not late, late


def test_jax_internals_and_configuration_are_left_alone():
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert "jax._src" not in text, path
        assert "config.update" not in text, path


def test_importing_computes_nothing_and_loads_no_extra():
    code = (
        "import atexit, sys, jax; before = dict(jax.config.values);"
        "register, late = atexit.register, [];"
        "atexit.register = lambda f, *a, **k: (late.append(f.__module__), register(f, *a, **k))[1];"
        "import parscan_bp;"
        "assert not [name for name in late if name.startswith('parscan_bp')], late;"
        "assert not {'flax', 'llvmlite', 'matplotlib', 'optax'} & set(sys.modules);"
        "assert not {'jax.experimental.pallas', 'parscan_bp.kernels.compat'} & set(sys.modules);"
        "later = ('parscan_bp.parallel', 'parscan_bp.pipeline');"
        "assert not [name for name in sys.modules if name.startswith(later)];"
        "parscan_bp.parallel, parscan_bp.pipeline;"
        "after = jax.config.values;"  # Pallas of jax 0.10.1 has an option of its own
        "assert {name: after[name] for name in before} == before;"
        "from jax._src import xla_bridge; assert not xla_bridge._backends"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_loaded_later_is_there_when_it_is_named():
    code = (
        "import sys, parscan_bp as pb; later = ('linen', 'nnx', 'parallel', 'pipeline', 'plots',"
        " 'pruning');"
        "assert not {f'parscan_bp.{name}' for name in later} & set(sys.modules);"
        "assert all(getattr(pb, name) is sys.modules[f'parscan_bp.{name}'] for name in later);"
        "import importlib.metadata;"
        "assert pb.__version__ == importlib.metadata.version('parscan_bp');"
        "assert not {'Any', 'TYPE_CHECKING', 'importlib', '_LOADED_LATER'} & set(dir(pb));"
        "assert {'__version__', 'pruning', 'scan'} <= set(dir(pb))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names_are_all_there():
    assert all(hasattr(parscan_bp, name) for name in parscan_bp.__all__)
    assert sorted(parscan_bp.__all__) == parscan_bp.__all__


def test_every_public_name_says_what_it_is():
    """A docstring of its own; modules of Flax have theirs, where Flax is there."""
    rooms = [getattr(parscan_bp, n) for n in parscan_bp.__all__]
    modules = [parscan_bp, *(room for room in rooms if inspect.ismodule(room))]
    lacks = [
        f"{module.__name__}.{name}"
        for module in modules
        for name in module.__all__
        if callable(it := getattr(module, name)) and not (vars(it).get("__doc__") or it.__doc__)
    ]
    assert len(modules) == 9 and not lacks, (len(modules), lacks)


def test_no_two_test_files_have_one_name():
    """pytest imports them by their names alone."""
    files = pathlib.Path(__file__).parent.rglob("*.py")
    alone = (p for p in files if not (p.parent / "__init__.py").exists())
    found = [p.name for p in alone if p.name != "__main__.py"]
    assert len(found) == len(set(found)), sorted(n for n in set(found) if found.count(n) > 1)


OF_OTHERS = {"Block"}
"""A block of steps in a system, and a block of a pipeline."""


def test_a_name_has_one_meaning():
    """What one namespace calls a thing, no other one does; no two classes have one name.

    Layers and blocks of Flax have the names of ours, and do what they do.
    """
    modules = ["parscan_bp", *(f"parscan_bp.{p.parent.name}" for p in ROOT.glob("*/__init__.py"))]
    meanings: dict[str, set[int]] = {}
    for module in map(importlib.import_module, sorted(set(modules) - {"parscan_bp.adapters"})):
        for name in getattr(module, "__all__", ()):
            meanings.setdefault(name, set()).add(id(getattr(module, name)))
    for path in ROOT.rglob("*.py"):
        where = path.relative_to(ROOT).as_posix()
        if where.startswith(("adapters/", "linen.py", "nnx.py")):
            continue
        classes = [n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]
        for name in (name for name in classes if not name.startswith("_")):
            own = importlib.import_module(f"parscan_bp.{where[:-3].replace('/', '.')}")
            meanings.setdefault(name, set()).add(id(getattr(own, name)))
    several = {name for name, things in meanings.items() if len(things) > 1}
    assert several == OF_OTHERS, sorted(several)
