"""Hugging Face's Trainer, rehearsed: does it fit, how fast is it, where does the time go?

    anyrig rehearse --rig 2xT4 --nproc-per-device 1 examples/trainer.py     # DDP, two ranks
    anyrig rehearse --rig RTX-4090 --report page.html examples/trainer.py
    anyrig run examples/trainer.py                                          # for real

Needs: pip install transformers accelerate. The model is a tiny GPT-2 with random weights, so that
nothing is downloaded.
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(512, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    ends = {"bos_token_id": 0, "eos_token_id": 0}  # the default ones are not in this vocabulary
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_layer=2, n_embd=64, n_head=4, **ends))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            max_steps=3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            ddp_find_unused_parameters=False,  # the model uses all; the search takes time
        )
        trained = Trainer(model, arguments, train_dataset=RandomTokens()).train()
    print(f"{arguments.device}: loss {trained.training_loss:.3f} after {trained.global_step} steps")


if __name__ == "__main__":
    main()
