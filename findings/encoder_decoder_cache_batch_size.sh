#!/usr/bin/env bash
# The cache that transformers' encoder-decoder models return with every output of a training step.
#
# Version: transformers 5.24.0, torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-29.
# Expected: EncoderDecoderCache, a Cache, answers the public properties of Cache: batch_size,
#           is_initialized.
# Seen:     both raise AttributeError: "'EncoderDecoderCache' object has no attribute 'layers'". The
#           class has the properties, so code that looks for them there, as `hasattr(type(x), ...)`
#           does, ends in an error. DynamicCache, which decoders return, answers both.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 transformers==5.24.0 numpy==2.2.6
cat > "$folder/cache.py" <<'PYTHON'
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

NAMES = ("batch_size", "is_initialized")
tokens = torch.randint(1, 90, (2, 6))
small = T5Config(
    vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
    decoder_start_token_id=0, pad_token_id=0,
)
models = {
    "EncoderDecoderCache": T5ForConditionalGeneration(small),
    "DynamicCache": GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=4)),
}
for kind, model in models.items():
    cache = model(input_ids=tokens, labels=tokens).past_key_values
    assert type(cache).__name__ == kind, type(cache)
    for name in NAMES:
        assert hasattr(type(cache), name), f"{kind} has no {name}"
        try:
            seen = repr(getattr(cache, name))
        except AttributeError as error:
            seen = f"AttributeError: {error}"
        print(f"transformers {transformers.__version__}: {kind}.{name}: {seen}")
        is_error = "has no attribute 'layers'" in seen
        assert is_error == (kind == "EncoderDecoderCache"), seen
PYTHON
"$folder/venv/bin/python" "$folder/cache.py"
