# SPDX-License-Identifier: Apache-2.0
"""Train in batches of sequences by Lightning, which is not installed with this library: ``pip install lightning``.

``python examples/lightning_batches.py --epochs 10``

Lightning owns the loop, the data loader and the optimiser of the hyperparameters. Natural steps move q(U) and q(X). For
several processes use ``torchrun`` (``examples/torchrun.py``): Lightning's strategy "ddp" averages gradients of bounds
that do not add up, and is refused with an error.
"""

from __future__ import annotations

import argparse

import lightning
import pyro
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pyro_vgpds import (
    VGPDS,
    AutoExplicit,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    MinibatchNaturalGradient,
    Posterior,
    SequenceDataset,
)
from pyro_vgpds.datasets import make_sequences


class Training(lightning.LightningModule):
    """A model and its guide, with the natural steps of the guide."""

    def __init__(
        self, model: VGPDS, guide: AutoExplicit, natural: MinibatchNaturalGradient, many: SequenceDataset
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # a natural step follows each step of the optimiser
        self.model, self.guide, self.natural, self.many = model, guide, natural, many
        self.elbo = Collapsed_ELBO()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.02)

    def training_step(self, indices: list[int], batch_idx: int) -> None:
        batch = self.many.batch(indices)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss: Tensor = self.elbo.differentiable_loss(self.model, self.guide, batch)  # minus an estimate of the bound
        self.manual_backward(loss)
        optimizer.step()
        self.natural.step(0.7)
        self.log("bound", -loss.detach(), prog_bar=True, on_step=False, on_epoch=True, batch_size=len(indices))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    data = make_sequences(num_sequences=40, num_outputs=8).sequences()
    many = SequenceDataset(data)
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=20)
    guide = AutoExplicit.from_collapsed(AutoOpperArchambeau(model), data)
    before = guide.collect(args.batch_size)
    loader = DataLoader(range(len(many)), args.batch_size, shuffle=True, collate_fn=list)
    with MinibatchNaturalGradient(guide) as natural:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=args.epochs,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(Training(model, guide, natural, many), loader)
    print(f"bound of all sequences: {before:.1f} before, {guide.collect(args.batch_size):.1f} after")
    ahead = Posterior(model, *guide.part([0])).forecast([3.0, 3.1], sequence="0")
    print(f"forecast of sequence 0: {ahead.mean[0, :3].tolist()}")


if __name__ == "__main__":
    main()
