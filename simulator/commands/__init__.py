"""The commands of ``python -m simulator``, one a file."""
