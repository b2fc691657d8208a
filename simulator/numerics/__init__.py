"""Number formats, rounding, approximate functions and tensor core accumulation, as numpy."""
