"""``torch.compile(f, backend="causal_attn")``."""
