"""From packages to a service: the Open Inference Protocol and OpenAI's, without torch.

On the command line: ``causal-attn serve PACKAGE…``; in Python, `causal_attn.serve.server.serve`
over what `causal_attn.serve.loading.load_models` gives. It needs the extra ``[serve]``, which
brings the KServe SDK. See ``docs/serve.md``.

Nothing is imported here: a mistake in the command line is told before the SDK, which takes two
seconds, is looked for.
"""
