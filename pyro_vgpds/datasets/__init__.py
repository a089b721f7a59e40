# SPDX-License-Identifier: Apache-2.0
"""Loaders of real data sets, and generators. Nothing is downloaded unless ``download=True``."""

from pyro_vgpds.datasets.acclaim import read_amc, read_asf
from pyro_vgpds.datasets.base import Dataset
from pyro_vgpds.datasets.bvh import load_bvh, read_bvh
from pyro_vgpds.datasets.cache import data_folder, find_file
from pyro_vgpds.datasets.cmu35 import CMU35, channels_from_features, features_from_channels, load_cmu35
from pyro_vgpds.datasets.discrete import CaseCounts, Chorales, Reaches, load_flu, load_jsb, load_mc_maze
from pyro_vgpds.datasets.gait import make_gait, stick_figure
from pyro_vgpds.datasets.mocap import Motion, load_cmu_mocap
from pyro_vgpds.datasets.sensors import make_sensors
from pyro_vgpds.datasets.skeleton import Skeleton
from pyro_vgpds.datasets.synthetic import make_pendulum_video, make_sequences
from pyro_vgpds.datasets.tables import load_french, load_robot_wireless, load_spellman
from pyro_vgpds.datasets.video import Video, load_clip, load_missa, load_video

__all__ = [
    "CMU35", "CaseCounts", "Chorales", "Dataset", "Motion", "Reaches", "Skeleton", "Video", "channels_from_features",
    "data_folder", "features_from_channels", "find_file", "load_bvh", "load_clip", "load_cmu35", "load_cmu_mocap",
    "load_flu", "load_french", "load_jsb", "load_mc_maze", "load_missa", "load_robot_wireless", "load_spellman",
    "load_video", "make_gait", "make_pendulum_video", "make_sensors", "make_sequences", "read_amc", "read_asf",
    "read_bvh", "stick_figure",
]  # fmt: skip
