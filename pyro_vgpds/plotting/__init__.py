# SPDX-License-Identifier: Apache-2.0
"""Plots of training, latent paths and predictions, with matplotlib. Functions draw on axes and return them."""

from pyro_vgpds.plotting.animation import (
    EmbeddedAnimation,
    animate_frames,
    animate_poses,
    embed_animation,
    save_animation,
)
from pyro_vgpds.plotting.frames import plot_frames
from pyro_vgpds.plotting.latent import plot_latent, plot_plane
from pyro_vgpds.plotting.poses import plot_poses
from pyro_vgpds.plotting.predictions import plot_forecast, plot_reconstruction
from pyro_vgpds.plotting.raster import plot_raster
from pyro_vgpds.plotting.training import plot_relevance, plot_training

__all__ = [
    "EmbeddedAnimation", "animate_frames", "animate_poses", "embed_animation", "plot_forecast", "plot_frames",
    "plot_latent", "plot_plane", "plot_poses", "plot_raster", "plot_reconstruction", "plot_relevance", "plot_training",
    "save_animation",
]  # fmt: skip
