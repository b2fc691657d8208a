"""Checks that watch an execution: each sees the machine's events and keeps its own findings."""
