"""Two real processes of this machine, one device each."""

import pytest

import parscan_bp as pb
from tests.grids.two_processes import NETS


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_two_processes_have_the_gradients_of_one(name):
    errors = pb.parallel.launch("tests.grids.two_processes:run", 2, arguments=[name])
    assert len(errors) == 2 and max(errors) < 2e-5
