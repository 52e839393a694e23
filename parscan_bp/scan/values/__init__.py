"""Whence the values of a scan come: its own loop, a native function, kernels, or a method."""
