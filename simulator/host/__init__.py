"""The host half of a compiled kernel: runs the exported host function and catches its launches."""
