"""Native code for instructions: one small machine-code function for each form that a program uses."""
