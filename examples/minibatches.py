# SPDX-License-Identifier: Apache-2.0
"""Train on many recordings that stay on disk, in batches of a few of them.

``python examples/minibatches.py --recordings 200 --epochs 5 --folder recordings``

The first model is trained on some recordings, with all of them in memory. Batches of all recordings then start from it.
Started again after an interruption of the second stage, it continues from its checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyro

from pyro_vgpds import VGPDS, AutoExplicit, AutoOpperArchambeau, Posterior, SequenceDataset, fit, load, save
from pyro_vgpds.data import MappedSequences
from pyro_vgpds.kernels import Bias, Matern32, White


def write(folder: Path, count: int) -> list[int]:
    """Recordings one after the other in two files; the number of frames of each. Yours would exist already."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(40, 60, count).tolist()
    t = [0.1 * np.arange(n) for n in lengths]
    y = [np.sin(2.0 * a[:, None] + rng.uniform(0, 6) + np.arange(12)) ** 3 for a in t]
    np.save(folder / "t.npy", np.concatenate(t))
    np.save(folder / "y.npy", np.concatenate(y) + 0.05 * rng.standard_normal((sum(lengths), 12)))
    return lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recordings", type=int, default=200)
    parser.add_argument("--sample", type=int, default=20, help="recordings of the first model")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("recordings"))
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    pyro.set_rng_seed(0)
    lengths = write(args.folder, args.recordings)
    many = SequenceDataset(MappedSequences(args.folder / "y.npy", lengths, args.folder / "t.npy"))

    first = args.folder / "first.safetensors"
    sample = many.sequences(range(min(args.sample, len(many))))
    if first.exists():
        model, guide, sample = load(first)
    else:
        temporal = Matern32() + White(1e-2) + Bias(0.1)
        model = VGPDS.from_data(sample, latent_dim=3, num_inducing=20, temporal=temporal)
        guide = AutoOpperArchambeau(model)
        fit(model, guide, sample, num_steps=40)
        save(first, model, guide, sample)
    assert isinstance(guide, AutoOpperArchambeau)
    explicit = AutoExplicit.from_sample(guide, sample, many)
    before = explicit.collect(args.batch_size)

    checkpoint = args.folder / "checkpoint"
    result = fit(
        model, explicit, many, batch_size=args.batch_size, epochs=args.epochs, learning_rate=0.03, warmup=0,
        checkpoint=checkpoint, resume=checkpoint if checkpoint.exists() else None,
    )  # fmt: skip
    print(f"{many}: bound {before:.1f} after the first model, {result.bound:.1f} after batches")
    post = Posterior(model, *explicit.part([0]))  # reads the first recording only, and knows the sums over the others
    ahead = post.forecast(np.linspace(6.0, 6.5, 6), sequence=0)
    print(f"forecast of the first recording: {np.round(ahead.mean[:, 0].numpy(), 2).tolist()}")
    save(args.folder / "model.safetensors", model, *explicit.part())  # predicts new recordings without the data


if __name__ == "__main__":
    main()
