"""Every kernel, executed from its PTX by 128 threads: no race, and what float64 says."""

import pytest

from parscan_bp import kernels
from tests.kernels.ptx import cases, ptx_text
from tests.kernels.ptx.execute import executing

REASON = kernels.missing() or ptx_text.missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def _name(case):
    return "-".join(map(str, case))


@pytest.mark.parametrize("case", cases.SCANS, ids=_name)
def test_scans(case):
    with executing() as launches:
        cases.scan(*case)
    assert len(launches) == 3


@pytest.mark.parametrize("case", cases.RECURRENCES, ids=_name)
def test_recurrences(case):
    with executing() as launches:
        cases.recurrence(*case).check()
    assert len(launches) == 1
