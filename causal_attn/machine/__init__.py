"""What this machine has: execution providers, the wheels that bring them, and its processor."""
