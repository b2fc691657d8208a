"""Kernels that other people publish, each made to look like `conformance.kernel.Kernel`."""
