"""Lightning's Trainer, rehearsed on GPUs that this machine does not have.

    anyrig rehearse --rig T4 examples/lightning_trainer.py
    anyrig rehearse --rig 2xT4 --nproc-per-device 1 examples/lightning_trainer.py    # DDP

Needs: pip install lightning.
"""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.network(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    lightning.seed_everything(0)
    x = torch.randn(256, 8)
    loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=32)
    trainer = lightning.Trainer(
        max_steps=5,
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), loader)
    print(f"{trainer.strategy.root_device}: {trainer.global_step} steps")


if __name__ == "__main__":
    main()
