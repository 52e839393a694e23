"""Pages of the API in Markdown, made of the docstrings."""

import importlib
import inspect
import re
from typing import Any

PAGES = {
    "scan": "scan custom_vjp_scan deep_rnn while_loop replace_scans Fused MemoryLimit",
    "chain": "chain layer_cotangents graph init_graph Node solve Uniform Ragged",
    "ask": "explain explain_chain explain_graph explain_within autotune autotune_calls Tuning"
    " measure_machine diagnose diagnose_within Diagnosis check_installation Installation",
    "reports": "Report Status ForwardReport LoopReport",
    **dict.fromkeys("solvers forward operators cells layers nnx linen".split(), ""),
    **dict.fromkeys("pipeline parallel pruning plots".split(), ""),
}
"""Names of `parscan_bp` for each page; none for the module of its name."""

_QUOTED = re.compile(r": (['\"])(.*?)\1( =|$)")
_HEAD = re.compile(r"(Args|Attributes|Returns|Raises|Source|Example):(.*)")
_PAGE = re.compile(r"\bdocs/(\w+\.md)")
_ITEM = re.compile(r"  (\*{0,2}\w[\w, *.]*): ?(.*)")


def page(name: str) -> str:
    """The page of that name."""
    names = PAGES[name].split()
    path = "parscan_bp" if names else f"parscan_bp.{name}"
    module = importlib.import_module(path)
    found = [(path, n, getattr(module, n)) for n in names or module.__all__]
    if not names:
        found = [("parscan_bp", n, it) for n, it in handed_on(path)] + found
    shown = [each for each in found if inspect.isclass(each[2]) or inspect.isfunction(each[2])]
    parts = (f"## {n}\n\n{_call(of, n, it)}{markdown(inspect.getdoc(it))}" for of, n, it in shown)
    title = f"`{path}`: {name}" if names else f"`{path}`"
    return f"# {title}\n\n" + "\n".join(parts)


def handed_on(path: str) -> list[tuple[str, Any]]:
    """What a module has that is public as a name of `parscan_bp` itself."""
    top = importlib.import_module("parscan_bp")
    found = ((n, getattr(top, n)) for n in top.__all__)
    return [(n, it) for n, it in found if getattr(it, "__module__", "").startswith(f"{path}.")]


def _call(path: str, name: str, it: Any) -> str:
    parameters = inspect.signature(it.__init__ if inspect.isclass(it) else it).parameters.values()
    said = [_QUOTED.sub(r": \2\3", str(p)) for p in parameters if p.name != "self"]
    lines = (f"        {re.sub(r' at 0x[0-9a-f]+', '', p)},\n" for p in said)
    return f"    {path}.{name}(\n{''.join(lines)}    )\n\n"


def markdown(doc: str | None) -> str:
    """A docstring: sections in bold, arguments as a list, an example as code, pages as links."""
    made, example = [], False
    for line in (doc or "").splitlines():
        head, item = _HEAD.fullmatch(line), _ITEM.fullmatch(line)
        example = head[1] == "Example" if head else example
        if head:
            made += ["", f"**{head[1]}.**{head[2]}", ""]
        elif item and not example:
            made += [f"- **{item[1]}**: {item[2]}"]
        elif not example and "`" not in line and not line.startswith("    "):
            made += [line.replace("](", "]\\(")]  # f[k](x) is a call, and no link
        else:
            made += ["  " + line if example else line]
    return _PAGE.sub(r"[\1](../\1)", "\n".join(made)) + "\n"
