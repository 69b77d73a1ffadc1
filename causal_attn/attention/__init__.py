"""What causal attention is: its spec, the torch reference and op, and the reference in numpy.

`spec` and `numpy_reference` know no framework; `reference`, `operator` and `example` import torch.
"""
