"""A small, fixed part of the property test; conv_property.py runs the large one."""

import pytest
from conv_property import check_seed
from repeats import repeats


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("number", range(4))
def test_every_algorithm_is_the_convolution_within_its_rounding(number, device):
    # Every problem is computed by at least one algorithm of the device.
    examples = repeats(150)
    assert check_seed(number, device, examples=examples) >= examples
