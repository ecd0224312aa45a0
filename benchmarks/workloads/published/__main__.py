"""``python -m workloads.published RUN STEPS``: a published run's training steps."""

from __future__ import annotations

import sys
from functools import partial

from . import decoder, deit, dino, mar

RUNS = {
    "dino": dino.train,
    "deit": deit.train,
    "deit-evaluation": deit.evaluate,
    "mistral-4": partial(decoder.train, model="Mistral-7B", batch=4, adapts=False),
    "mistral-lora-4": partial(decoder.train, model="Mistral-7B", batch=4, adapts=True),
    "mistral-lora-8": partial(decoder.train, model="Mistral-7B", batch=8, adapts=True),
    "powerlm-4": partial(decoder.train, model="PowerLM-3b", batch=4, adapts=False),
    "powerlm-8": partial(decoder.train, model="PowerLM-3b", batch=8, adapts=False),
    "mar": partial(mar.train, recomputes=False),
    "mar-recomputed": partial(mar.train, recomputes=True),
}

if __name__ == "__main__":
    RUNS[sys.argv[1]](int(sys.argv[2]))
