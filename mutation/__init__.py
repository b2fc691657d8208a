"""Faults put into kernels on purpose: what the checks and the suite do not find, they overlook."""
