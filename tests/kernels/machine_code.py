"""The loops of compiled kernels, of what nvdisasm prints."""

import re

LABEL = re.compile(r"\s*(\.L_x_\d+):")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)(.*)")


def jump(name, rest):
    """The label that an instruction jumps to."""
    return re.search(r"\.L_x_\d+", rest) if name == "BRA" else None


def largest_loop(text):
    """The instructions, by name, of the largest loop that has no other one inside."""
    labels, code = {}, []
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(code)
        elif found := INSTRUCTION.search(line):
            code.append(found.groups())
    ends = [(labels[to[0]], at) for at, (name, rest) in enumerate(code) if (to := jump(name, rest))]
    loops = [(start, end) for start, end in ends if start <= end]
    inner = [
        (start, end)
        for start, end in loops
        if not any(start <= a and b <= end for a, b in loops if (a, b) != (start, end))
    ]
    start, end = max(inner, key=lambda loop: loop[1] - loop[0])
    return [name for name, _ in code[start : end + 1]]
