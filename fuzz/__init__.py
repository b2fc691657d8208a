"""Long searches for problems on which a kernel under test goes wrong."""
