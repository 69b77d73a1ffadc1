"""Time models in processes of their own, which take turns and leave the cores to each other."""
