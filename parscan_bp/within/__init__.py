"""Whole programs: every scan inside of a function that somebody else may have written."""

from parscan_bp.within.explain import explain_within as explain_within
from parscan_bp.within.replace import replace_scans as replace_scans
