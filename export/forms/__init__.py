"""How attention is written in a graph: one lowering of ``causal_attn::attend`` a form."""
