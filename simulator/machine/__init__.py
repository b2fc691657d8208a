"""What the kernels run on: grid, memories, barriers, tensor maps and the tensor core."""
