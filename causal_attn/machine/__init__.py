"""What this machine has: execution providers, wheels, versions, and what is missing for a task."""
