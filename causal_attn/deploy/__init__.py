"""What other servers need to run a package: a Triton model repository, a KServe service.

On the command line: ``causal-attn deploy PACKAGE --for triton|kserve OUT``; in Python,
`causal_attn.deploy.triton.write_triton` and `causal_attn.deploy.kserve.write_kserve` over what
`causal_attn.deploy.source.open_source` gives. No torch. See ``docs/deploy.md``.
"""
