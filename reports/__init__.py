"""What the tools write while they run, and the reports made of it."""
