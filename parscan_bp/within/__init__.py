"""Whole programs: every scan inside of a function that somebody else may have written."""

from parscan_bp.within.diagnose import ProgramDiagnosis as ProgramDiagnosis
from parscan_bp.within.diagnose import ScanDiagnosis as ScanDiagnosis
from parscan_bp.within.diagnose import diagnose_within as diagnose_within
from parscan_bp.within.explain import ProgramExplanation as ProgramExplanation
from parscan_bp.within.explain import ScanWithin as ScanWithin
from parscan_bp.within.explain import explain_within as explain_within
from parscan_bp.within.replace import replace_scans as replace_scans

__all__ = [
    "ProgramDiagnosis",
    "ProgramExplanation",
    "ScanDiagnosis",
    "ScanWithin",
    "diagnose_within",
    "explain_within",
    "replace_scans",
]
