"""tokenspeed-mla 2.0.4 with one comparison of its PTX changed, as ``--kernel`` takes it."""

from conformance.adapters import tokenspeed
from conformance.kernel import Kernel
from tests.conformance.adapters.test_tokenspeed import unmask_one_key_too_many


def one_key_too_many() -> Kernel:
    """A kernel whose last tile keeps its second key where that is the first one past the end.

    It keeps the name, and with it the known limits, of the kernel that it was made of.
    """
    return tokenspeed.fp8_2_0_4(transform=unmask_one_key_too_many)
