"""Settings of all tests of the fuzzer."""

import torch

# The matrices are small: threads gain nothing, and on a busy machine they wait for each other.
torch.set_num_threads(1)
