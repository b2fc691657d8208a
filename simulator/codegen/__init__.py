"""Native code for instructions: one small function for each form that a program uses."""
