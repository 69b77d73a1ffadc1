"""The corpus: what people write and use, and what becomes of it."""

from __future__ import annotations

from causal_attn.package.certificate import Verdict
from corpus import (
    caches,
    einops_modules,
    flex,
    gpt_fast,
    litgpt,
    llama,
    nanogpt,
    positions,
    torch_modules,
    wrong,
)
from corpus.libraries import (
    HuggingFaceLayer,
    WithoutCache,
    hf_model,
    hf_module,
    x_decoder,
    x_wrapper,
)
from corpus.target import Input, RealTarget, embeddings, features, ids

__all__ = ["TARGETS", "WRONG"]

X = {"x": embeddings()}
IDX = {"idx": ids()}
INPUT_IDS = {"input_ids": ids()}
HIDDEN = {"hidden_states": embeddings()}
FIRST = {"src": Input(("tokens", "batch"), below=61)}
CACHE = {
    "past_key": Input(("batch", 4, "past_tokens", 8)),
    "past_value": Input(("batch", 4, "past_tokens", 8)),
}
GROUPED_CACHE = {
    "past_key": Input(("batch", 2, "past_tokens", 8)),
    "past_value": Input(("batch", 2, "past_tokens", 8)),
}
BOTH = ("float32", "float16")

TARGETS: dict[str, RealTarget] = {
    # nanoGPT, minGPT
    "nanogpt attention": RealTarget(build=nanogpt.FusedAttention, inputs=X, dtypes=BOTH),
    "nanogpt attention with dropout": RealTarget(
        build=lambda: nanogpt.FusedAttention(dropout=0.2), inputs=X
    ),
    "nanogpt attention with a buffer": RealTarget(
        build=nanogpt.MaskedAttention, inputs=X, longest=64, dtypes=BOTH
    ),
    "nanogpt block": RealTarget(build=nanogpt.Block, inputs=X),
    "nanogpt": RealTarget(build=nanogpt.GPT, inputs=IDX, longest=64),
    # A result of all tokens: nothing is claimed of rows, and it is the same everywhere.
    "nanogpt, last logits": RealTarget(
        build=lambda: nanogpt.GPT(last=True),
        inputs=IDX,
        longest=64,
        verdict=Verdict.OF_ALL_TOKENS,
    ),
    "mingpt": RealTarget(
        build=lambda: nanogpt.GPT(nanogpt.MaskedAttention), inputs=IDX, longest=64
    ),
    # gpt-fast
    "gpt-fast": RealTarget(build=gpt_fast.Transformer, inputs=IDX, longest=64),
    "gpt-fast attention, growing cache": RealTarget(
        build=gpt_fast.PassedCacheAttention, inputs={**X, **GROUPED_CACHE}
    ),
    # The table ends where past and tokens together do, which no bound of one dim says.
    "gpt-fast attention, growing cache, angles in a table": RealTarget(
        build=lambda: gpt_fast.PassedCacheAttention(table=True),
        inputs={**X, **GROUPED_CACHE},
        refusal="`past_key` must have past_tokens = at least 1",
    ),
    # litgpt
    "litgpt attention": RealTarget(build=litgpt.AttentionWithRope, inputs=X, longest=64),
    "litgpt": RealTarget(build=litgpt.GPT, inputs=IDX, longest=64),
    "litgpt, parallel, part rotated": RealTarget(
        build=lambda: litgpt.GPT(parallel=True, rotated=4), inputs=IDX, longest=64
    ),
    "litgpt, norms of queries and keys": RealTarget(
        build=lambda: litgpt.GPT(norm_qk=True), inputs=IDX, longest=64
    ),
    # Llama
    "llama attention, grouped": RealTarget(build=llama.SharedHeads, inputs=X, dtypes=BOTH),
    "llama attention, one head shared": RealTarget(
        build=lambda: llama.SharedHeads(kv_heads=1), inputs=X
    ),
    "llama attention, window": RealTarget(build=lambda: llama.SharedHeads(window=4), inputs=X),
    "llama layer": RealTarget(build=llama.Layer, inputs=X, dtypes=BOTH),
    "llama": RealTarget(build=llama.Decoder, inputs={"tokens": ids()}),
    "llama, every other layer a window": RealTarget(
        build=lambda: llama.Decoder(windows=(4, None)), inputs={"tokens": ids()}
    ),
    "llama attention, complex": RealTarget(build=llama.ComplexRotary, inputs=X, longest=64),
    "llama attention, complex, no buffer": RealTarget(
        build=lambda: llama.ComplexRotary(buffer=False), inputs=X, longest=64
    ),
    "deepseek latent attention": RealTarget(build=llama.LatentAttention, inputs=X),
    # positions
    "alibi": RealTarget(build=positions.Alibi, inputs=X),
    "alibi, kept from the first call on": RealTarget(build=positions.KeptAlibi, inputs=X),
    "angles in tables that grow": RealTarget(build=positions.GrownAngles, inputs=X, longest=64),
    "t5 bias": RealTarget(build=positions.BucketedBias, inputs=X),
    "sliding window": RealTarget(build=positions.Windowed, inputs=X, dtypes=BOTH),
    "log n": RealTarget(build=positions.LogN, inputs=X),
    "sinusoidal decoder": RealTarget(build=positions.SinusoidalDecoder, inputs={"ids": ids()}),
    # torch
    "nn.MultiheadAttention": RealTarget(build=torch_modules.MultiHead, inputs=X, dtypes=BOTH),
    "nn.MultiheadAttention without the hint": RealTarget(
        build=lambda: torch_modules.MultiHead(hint=False), inputs=X
    ),
    "nn.MultiheadAttention with weights": RealTarget(
        build=lambda: torch_modules.MultiHead(hint=False, need_weights=True, boolean=True),
        inputs=X,
    ),
    "nn.TransformerEncoderLayer": RealTarget(
        build=torch_modules.EncoderLayer, inputs=X, dtypes=BOTH
    ),
    "nn.TransformerEncoderLayer, norm first, tokens first": RealTarget(
        build=lambda: torch_modules.EncoderLayer(norm_first=True, batch_first=False),
        inputs={"x": Input(("tokens", "batch", 32))},
    ),
    "nn.TransformerEncoder": RealTarget(build=torch_modules.Encoder, inputs=X),
    "nn.TransformerEncoder without the hint": RealTarget(
        build=lambda: torch_modules.Encoder(hint=False), inputs=X
    ),
    "nn.TransformerDecoder over a memory": RealTarget(
        build=torch_modules.DecoderLayer,
        inputs={"tgt": embeddings(), "memory": Input(("batch", "memory", 32))},
    ),
    "tutorial attention": RealTarget(build=torch_modules.TutorialAttention, inputs=X),
    "tutorial language model": RealTarget(
        build=torch_modules.TutorialModel, inputs=FIRST, longest=64
    ),
    "word_language_model": RealTarget(
        build=lambda: torch_modules.TutorialModel(kept=True), inputs=FIRST, longest=64
    ),
    "flex_attention, grouped": RealTarget(build=flex.FlexAttention, inputs=X, dtypes=BOTH),
    "flex_attention, window and ALiBi": RealTarget(
        build=lambda: flex.FlexAttention(window=4, alibi=True), inputs=X
    ),
    "flex_attention, documents": RealTarget(
        build=flex.Documents,
        inputs={"x": embeddings(), "documents": Input(("batch", "tokens"), below=3)},
    ),
    # transformers
    "transformers GPT2Attention": RealTarget(
        build=lambda: hf_module("gpt2", "transformer.h.0.attn"), inputs=HIDDEN
    ),
    "transformers GPT2Block": RealTarget(
        build=lambda: hf_module("gpt2", "transformer.h.0"), inputs=HIDDEN, dtypes=BOTH
    ),
    "transformers GPTNeoBlock": RealTarget(
        build=lambda: hf_module("gpt_neo", "transformer.h.1"), inputs=HIDDEN, longest=64
    ),
    "transformers LlamaAttention": RealTarget(
        build=lambda: HuggingFaceLayer("llama", "model.layers.0.self_attn"), inputs=HIDDEN
    ),
    "transformers LlamaDecoderLayer": RealTarget(
        build=lambda: HuggingFaceLayer("llama", "model.layers.0"), inputs=HIDDEN
    ),
    "transformers Qwen3Attention": RealTarget(
        build=lambda: HuggingFaceLayer("qwen3", "model.layers.0.self_attn"), inputs=HIDDEN
    ),
    "transformers GPT-2 without cache": RealTarget(
        build=lambda: WithoutCache(hf_model("gpt2")), inputs=INPUT_IDS, longest=64
    ),
    "transformers Mistral without cache": RealTarget(
        build=lambda: WithoutCache(hf_model("mistral")), inputs=INPUT_IDS
    ),
    "transformers OPT without cache": RealTarget(
        build=lambda: WithoutCache(hf_model("opt")), inputs=INPUT_IDS
    ),
    "transformers BLOOM without cache": RealTarget(
        build=lambda: WithoutCache(hf_model("bloom")), inputs=INPUT_IDS
    ),
    "transformers CodeGen without cache": RealTarget(
        build=lambda: WithoutCache(hf_model("codegen")), inputs=INPUT_IDS, longest=64
    ),
    "transformers BioGPT without cache": RealTarget(
        build=lambda: WithoutCache(hf_model("biogpt")), inputs=INPUT_IDS, longest=64
    ),
    # Its table of positions is made larger by a call that needs more: it ends as it was given.
    "transformers XGLM without cache": RealTarget(
        build=lambda: WithoutCache(hf_model("xglm")), inputs=INPUT_IDS, longest=64
    ),
    "transformers BERT as a decoder": RealTarget(
        build=lambda: WithoutCache(hf_model("bert")), inputs=INPUT_IDS, longest=64
    ),
    # x-transformers
    "x-transformers Decoder": RealTarget(build=x_decoder, inputs=X),
    "x-transformers Decoder, flash": RealTarget(
        build=lambda: x_decoder(attn_flash=True), inputs=X
    ),
    # The distances of these two are made with einx.
    "x-transformers Decoder, ALiBi": RealTarget(
        build=lambda: x_decoder(alibi_pos_bias=True, alibi_num_heads=2), inputs=X
    ),
    "x-transformers Decoder, T5 bias": RealTarget(
        build=lambda: x_decoder(rel_pos_bias=True), inputs=X
    ),
    "x-transformers Decoder, norms of queries and keys": RealTarget(
        build=lambda: x_decoder(attn_qk_norm=True, attn_qk_norm_dim_scale=True), inputs=X
    ),
    "x-transformers Decoder, grouped": RealTarget(
        build=lambda: x_decoder(attn_kv_heads=2, attn_flash=True), inputs=X
    ),
    "x-transformers Decoder, token shift": RealTarget(
        build=lambda: x_decoder(shift_tokens=1, sandwich_norm=True), inputs=X
    ),
    "x-transformers TransformerWrapper": RealTarget(
        build=x_wrapper, inputs={"x": ids()}, longest=64
    ),
    "x-transformers TransformerWrapper, rotary": RealTarget(
        build=lambda: x_wrapper(
            rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True, attn_flash=True
        ),
        inputs={"x": ids()},
    ),
    # einops
    "einops attention": RealTarget(build=einops_modules.RearrangedAttention, inputs=X),
    "einops attention, grouped": RealTarget(build=einops_modules.RepeatedAttention, inputs=X),
    "einops layers": RealTarget(build=einops_modules.LayeredAttention, inputs=X),
    "einops parallel block": RealTarget(build=einops_modules.ParallelBlock, inputs=X),
    "growing cache": RealTarget(build=caches.Growing, inputs={**X, **CACHE}),
}
"""Modules that people have."""

WRONG: dict[str, RealTarget] = {
    "nn.TransformerEncoder without a mask": RealTarget(
        build=lambda: torch_modules.Encoder(masked=False), inputs=X, refusal="not causal"
    ),
    "x-transformers Encoder": RealTarget(
        build=lambda: x_wrapper("Encoder"), inputs={"x": ids()}, refusal="not causal"
    ),
    "cross-attention": RealTarget(
        build=wrong.CrossAttention,
        inputs={"x": embeddings(), "context": embeddings()},
        refusal="not causal",
    ),
    "masked after softmax": RealTarget(
        build=lambda: wrong.masked_after_softmax,
        inputs={"q": features(), "k": features(), "v": features()},
        refusal="not causal",
    ),
    "dropout in eval mode": RealTarget(
        build=wrong.TrainingDropout,
        inputs=X,
        refusal="`dropout_p` of scaled_dot_product_attention must be 0",
    ),
    "mask of Python numbers": RealTarget(
        build=wrong.PythonMask, inputs=X, refusal="the code fixes it to the size of the example"
    ),
    "cache in a buffer": RealTarget(
        build=gpt_fast.BufferCacheAttention,
        inputs={"x": Input((2, "tokens", 32))},
        refusal="`target` must not change its buffers or inputs",
    ),
}
"""Modules that see the future, or say what no graph can say."""
