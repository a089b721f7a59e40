# SPDX-License-Identifier: Apache-2.0
"""The first chapter: a video of a pendulum, half of some frames hidden, and what comes after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyro_vgpds.baselines import nearest_neighbour
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.datasets import make_pendulum_video
from pyro_vgpds.demo.common import learned_picture, rms, save_figure, train
from pyro_vgpds.demo.report import Chapter, Figure, Table
from pyro_vgpds.files.container import placed
from pyro_vgpds.kernels import Bias, Periodic, White
from pyro_vgpds.metrics import coverage
from pyro_vgpds.plotting import animate_frames, plot_forecast, plot_frames, save_animation

__all__ = ["video_chapter"]


def video_chapter(
    output: Path, steps: int, seed: int, say: Callable[[str], Any], progress: bool | None, small: bool
) -> Chapter:
    """Train on the seen frames, reconstruct the broken ones, forecast the rest; write files and tell the story."""
    count, side, after, broken = (60, 12, 48, slice(20, 28)) if small else (120, 32, 90, slice(40, 58))
    video = make_pendulum_video(count, side, side, seed=seed)
    clean = make_pendulum_video(count, side, side, noise=0.0, seed=seed).y[0]
    t, y = video.t[0], video.y[0]
    half, ahead = np.zeros(count, dtype=bool), t >= after
    half[broken] = True
    whole = ~half & ~ahead
    seen = np.where(whole[:, None], y, np.nan)
    seen[half, : side * side // 2] = y[half, : side * side // 2]  # their upper half

    say(f"video: training on {whole.sum()} frames of {side} x {side} pixels ...")
    data = Sequences(t[whole], y[whole])
    kernel = Periodic() + White(1e-2) + Bias(0.1)
    about = {"source": "make_pendulum_video", "shape": video.shape}
    path = output / "video.safetensors"
    trained = train(path, data, kernel, 10, min(40, len(data.times)), steps, seed, say, progress, **about)
    posterior = trained.posterior
    say("video: reconstructing and forecasting ...")
    found = posterior.reconstruct(t[half], seen[half], sequence=0, include_noise=False)
    forecast = posterior.forecast(t[ahead], include_noise=False)
    said = np.empty_like(y)
    said[whole] = posterior.impute(fill=False, include_noise=False).mean.numpy()
    said[half], said[ahead] = found.mean.numpy(), forecast.mean.numpy()
    hidden = np.isnan(seen)
    near = np.asarray(nearest_neighbour(y[whole], seen[half]))

    frames = video.to_frames
    labels = [f"frame {int(number)}" for number in t]
    films = {"truth": frames(y), "what the model saw": frames(seen), "what it says": frames(said)}
    gif = save_animation(animate_frames(films, labels=labels), output / "video.gif", dpi=72)
    rows = {"truth": y, "seen": seen, "model": said}
    grid = {name: frames(film[half]) for name, film in rows.items()} | {"nearest\nframe": frames(near)}
    still = plot_frames(grid, labels=np.array(labels)[half])
    later = {name: frames(rows[name][ahead]) for name in ("truth", "model")}
    later_still = plot_frames(later, labels=np.array(labels)[ahead])
    pixel = int(np.argmax(clean[whole].std(0)))
    fan = plot_forecast(posterior.forecast(t[ahead]), pixel, history=(t[~ahead], y[~ahead]), truth=(t[ahead], y[ahead]))
    fan.set(xlabel="frame", ylabel="brightness of one pixel")
    with placed(output / "video_partly.npz") as part, part.open("wb") as file:
        np.savez_compressed(file, frames=frames(seen[half]), t=t[half])

    lower, upper = (end.numpy() for end in posterior.forecast(t[ahead]).interval(0.95))
    last, mean = np.broadcast_to(y[whole][-1], y[ahead].shape), np.broadcast_to(y[whole].mean(0), y.shape)
    relevance = trained.model.relevance(trained.guide, data)
    period = float(next(leaf for leaf in trained.model.temporal.leaves() if isinstance(leaf, Periodic)).period)
    lost = hidden[half]
    return Chapter(
        "A video with holes",
        [
            f"The first film shows a pendulum in {count} noisy frames of {side} x {side} = {side * side} pixels. The "
            f"model saw {whole.sum()} of them. Of {half.sum()} others it was given the upper half, and of the last "
            f"{ahead.sum()} nothing at all.",
            Figure(gif, "Left: the film. Middle: what the model was given; coloured is what it never saw. Right: what "
                   "the model says of every frame. It leaves the noise away."),
            f"Every pixel is a number that changes in time, but only one thing moves. The model began with "
            f"{len(relevance.value)} hidden dimensions and kept {int(relevance.active.sum())} on. It was told that the "
            f"movement repeats, and found from the frames that it does so every {period:.1f} frames (the truth is 24).",
            Figure(learned_picture(trained, output / "video_learned.png"),
                   "Left: how much each hidden dimension matters, before and after training. Right: the path of the "
                   "film through the two leading dimensions; each dot is a frame."),
            "With the upper half of a frame it finds the lower half:",
            Figure(save_figure(still, output / "video_frames.png"),
                   "Frames of which the lower half was hidden. The last row fills in the lower half of the training "
                   "frame whose upper half is most alike, noise and all."),
            "And with nothing but the time it goes on where the film ends:",
            Figure(save_figure(later_still, output / "video_forecast.png"),
                   "Frames after the end of what the model saw."),
            Figure(save_figure(fan, output / "video_fan.png"),
                   "One pixel, over which the pendulum swings. The bands hold half and 95 per cent of the probability; "
                   f"of all unseen pixels {100 * coverage(y[ahead], lower, upper):.0f} per cent lie in their 95 per "
                   "cent band."),
            Table(
                ["root mean square error, of 255", "hidden halves", "frames ahead"],
                [
                    ["the model", f"{rms(clean[half], said[half], lost):.1f}", f"{rms(clean[ahead], said[ahead]):.1f}"],
                    ["nearest frame / last frame", f"{rms(clean[half], near, lost):.1f}",
                     f"{rms(clean[ahead], last):.1f}"],
                    ["mean of the frames", f"{rms(clean[half], mean[half], lost):.1f}",
                     f"{rms(clean[ahead], mean[ahead]):.1f}"],
                ],
                "Against the film without its noise, which nobody was shown. Lower is better.",
            ),
        ],
        ["pyro-vgpds info video.safetensors", "pyro-vgpds forecast video.safetensors --until 200 -o video_ahead.gif",
         "pyro-vgpds reconstruct video.safetensors video_partly.npz --sequence 0 -o video_whole.gif"],
    )  # fmt: skip
