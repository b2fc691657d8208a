"""Runs compiled CUDA kernels on the CPU, one PTX instruction after another."""
