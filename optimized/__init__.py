"""MLA decode kernels of this repository, with the host code that plans and compiles them."""
