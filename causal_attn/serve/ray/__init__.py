"""A package on a cluster of Ray: replicas of it behind doors that retry, as one Serve application.

::

    from ray import serve

    from causal_attn.serve.ray import application

    serve.run(application("llama", replicas=4))

It needs the extra ``[ray]``. See ``docs/serve.md``.
"""

from causal_attn.serve.ray.application import application

__all__ = ["application"]
