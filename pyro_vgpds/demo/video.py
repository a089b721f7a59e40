# SPDX-License-Identifier: Apache-2.0
"""The first chapter: a video of a pendulum, with half of some frames hidden, and its continuation."""

from __future__ import annotations

import numpy as np

from pyro_vgpds.baselines import nearest_neighbour
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.datasets import make_pendulum_video
from pyro_vgpds.demo.common import Demo, rms
from pyro_vgpds.files.atomic import atomic_write
from pyro_vgpds.files.tables import write_arrays
from pyro_vgpds.kernels import Bias, Periodic, White
from pyro_vgpds.metrics import coverage
from pyro_vgpds.plotting import animate_frames, plot_forecast, plot_frames, save_animation
from pyro_vgpds.plotting.pages import Chapter, ReportFigure, ReportTable

__all__ = ["video_chapter"]


def video_chapter(demo: Demo) -> Chapter:
    """Train on the complete frames, reconstruct the partial ones, and forecast the rest."""
    count, side, after, broken = (60, 12, 48, slice(20, 28)) if demo.small else (120, 32, 90, slice(40, 58))
    video = make_pendulum_video(count, side, side, seed=demo.seed)
    clean = make_pendulum_video(count, side, side, noise=0.0, seed=demo.seed).y[0]
    t, y = video.t[0], video.y[0]
    half, ahead = np.zeros(count, dtype=bool), t >= after
    half[broken] = True
    whole = ~half & ~ahead
    seen = np.where(whole[:, None], y, np.nan)
    seen[half, : side * side // 2] = y[half, : side * side // 2]  # their upper half

    demo.say(f"video: training on {whole.sum()} frames of {side} x {side} pixels ...")
    data = Sequences(t[whole], y[whole])
    kernel = Periodic() + White(1e-2) + Bias(0.1)
    trained = demo.train(
        "video.safetensors", data, kernel, 10, min(40, len(data.times)), source="make_pendulum_video", shape=video.shape
    )
    posterior = trained.posterior
    demo.say("video: reconstructing and forecasting ...")
    found = posterior.reconstruct(t[half], seen[half], sequence=0, include_noise=False)
    forecast = posterior.forecast(t[ahead], include_noise=False)
    film = np.empty_like(y)
    film[whole] = posterior.impute(fill=False, include_noise=False).mean.numpy()
    film[half], film[ahead] = found.mean.numpy(), forecast.mean.numpy()
    hidden = np.isnan(seen)
    near = np.asarray(nearest_neighbour(y[whole], seen[half]))

    frames = video.to_frames
    labels = [f"frame {int(number)}" for number in t]
    films = {"truth": frames(y), "given": frames(seen), "predicted": frames(film)}
    gif = save_animation(animate_frames(films, labels=labels), demo.output / "video.gif", dpi=72)
    rows = {"truth": y, "given": seen, "model": film}
    grid = {name: frames(shown[half]) for name, shown in rows.items()} | {"nearest\nframe": frames(near)}
    still = plot_frames(grid, labels=np.array(labels)[half])
    later = {name: frames(rows[name][ahead]) for name in ("truth", "model")}
    later_still = plot_frames(later, labels=np.array(labels)[ahead])
    pixel = int(np.argmax(clean[whole].std(0)))
    fan = plot_forecast(posterior.forecast(t[ahead]), pixel, history=(t[~ahead], y[~ahead]), truth=(t[ahead], y[ahead]))
    fan.set(xlabel="frame", ylabel="brightness of one pixel")
    with atomic_write(demo.output / "video_partly.npz") as part:
        write_arrays(part, {"frames": frames(seen[half]), "t": t[half]})

    lower, upper = (end.numpy() for end in posterior.forecast(t[ahead]).interval(0.95))
    last, mean = np.broadcast_to(y[whole][-1], y[ahead].shape), np.broadcast_to(y[whole].mean(0), y.shape)
    period = float(next(leaf for leaf in trained.model.temporal.leaves() if isinstance(leaf, Periodic)).period)
    lost = hidden[half]
    return Chapter(
        "A video with holes",
        [
            f"The video shows a pendulum in {count} noisy frames of {side} x {side} = {side * side} pixels. The model "
            f"was trained on {whole.sum()} of them. Of {half.sum()} others it was given the upper half, and of the "
            f"last {ahead.sum()} nothing.",
            ReportFigure(gif, "Left: the video. Middle: the part that the model was given; the rest is coloured. "
                   "Right: the noise-free prediction of every frame."),
            f"Every pixel is an output, but only one object moves. Of {trained.model.latent_dim} initial latent "
            f"dimensions {int(trained.relevance.active.sum())} are active after training. The kernel states that the "
            f"movement repeats; its period, estimated from the frames, is {period:.1f} frames (the truth is 24).",
            ReportFigure(demo.learned(trained, "video_learned.png"),
                   "Left: the relevance of each latent dimension before and after training. Right: the latent path in "
                   "the plane of the two leading dimensions; each dot is a frame."),
            "From the upper half of a frame the model reconstructs the lower half:",
            ReportFigure(demo.picture(still, "video_frames.png"),
                   "Frames whose lower half was hidden. The last row uses the lower half of the training frame with "
                   "the most similar upper half."),
            "From the times alone it forecasts frames beyond the end of the training data:",
            ReportFigure(demo.picture(later_still, "video_forecast.png"),
                   "Frames after the training data."),
            ReportFigure(demo.picture(fan, "video_fan.png"),
                   "One pixel in the path of the pendulum, with bands of 50 and 95 per cent probability. Of all pixels "
                   f"of the forecast frames {100 * coverage(y[ahead], lower, upper):.0f} per cent lie in their 95 per "
                   "cent band."),
            ReportTable(
                ["root mean squared error, of 255", "hidden halves", "frames ahead"],
                [
                    ["the model", f"{rms(clean[half], film[half], lost):.1f}", f"{rms(clean[ahead], film[ahead]):.1f}"],
                    ["nearest frame / last frame", f"{rms(clean[half], near, lost):.1f}",
                     f"{rms(clean[ahead], last):.1f}"],
                    ["mean of the frames", f"{rms(clean[half], mean[half], lost):.1f}",
                     f"{rms(clean[ahead], mean[ahead]):.1f}"],
                ],
                "Compared with the video without its noise. Lower is better.",
            ),
        ],
        ["pyro-vgpds info video.safetensors", "pyro-vgpds forecast video.safetensors --until 200 -o video_ahead.gif",
         "pyro-vgpds reconstruct video.safetensors video_partly.npz --sequence 0 -o video_whole.gif"],
    )  # fmt: skip
