"""The checks, one file each, and the order in which they run."""
