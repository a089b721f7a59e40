# SPDX-License-Identifier: Apache-2.0
"""The folder of data files, their sources, and their download on request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pyro_vgpds.checks import check_flags, check_path
from pyro_vgpds.datasets.base import require
from pyro_vgpds.types import PathLike

__all__ = ["SOURCES", "Source", "data_folder", "find_file"]

_ENVIRONMENT = "PYRO_VGPDS_DATA"
_GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Source:
    """The source of a data file.

    ``url`` is pinned: it names a full commit, so its content never changes. A file without a ``url`` has to be copied
    by the user; ``obstacle`` is the reason.
    """

    origin: str
    sha256: str
    url: str | None = None
    obstacle: str = ""


def _github(repository: str, commit: str, path: str, sha256: str) -> Source:
    return Source(f"github.com/{repository}, {path}", sha256, f"{_GITHUB}/{repository}/{commit}/{path}")


def _cmu07(name: str, sha256: str) -> Source:
    return Source(
        f"github.com/KseniiaCheloshkina/amc, data/07/{name}, or mocap.cs.cmu.edu, subject 07",
        sha256,
        obstacle="the full commit of that copy is not known",
    )


_GPMAT = "SheffieldML/GPmat"
_NO_LICENCE = "its owner states no licence, and it was converted from a film"

#: every file that a loader reads by name: its path in the data folder, and its source
SOURCES: dict[str, Source] = {
    "cmu35/cmu35WalkJog.mat": _github(
        _GPMAT,
        "c6181986088bf3c2fa5081de7504f3997d33963f",
        "datasets/data/cmu35WalkJog.mat",
        "50db534501bdfb1611153e3b5d122fc08b0c42ea159e875d5656ec13fa11a353",
    ),
    "cmu35/cmu35TaylorScaleBias.mat": _github(
        _GPMAT,
        "27c44d3da13b2803777282e2ec54e131219d8cf6",
        "datasets/data/cmu35TaylorScaleBias.mat",
        "e6533fa9ba17de0d095e4c63aba0ef17c85289cf6a820f8e01b5548891e08408",
    ),
    "cmu35/35.asf": _github(
        _GPMAT,
        "705c4d2ff1ccf8f7f1e85943d14b2e7a749b8ba5",
        "datasets/data/mocap/cmu/35/35.asf",
        "2a8e2eda3c0d7d828566b2a9a8ab36b2b8b3864110574e8b73c8f069fded416c",
    ),
    "cmu35/35_01.amc": _github(
        _GPMAT,
        "2ae322017a3f41148a18eae4dad504cbd6405a4a",
        "35_01.amc",
        "0743f4ea48e7e199cd56b2810b5ce81f8ede08d32ff79aa4e363c44cc4fe33aa",
    ),
    "cmu07/07.asf": _cmu07("07.asf", "f1fbd8abcd9073d24189d5f33b7220974b0ac4b5223fabbb0cc07799ec7a93b3"),
    "cmu07/07_01.amc": _cmu07("07_01.amc", "97cdb8296c5a9a37a2eaca7ce214b9dbaef49016f7e28c22c5b74688fcd8e0e3"),
    "cmu07/07_02.amc": _cmu07("07_02.amc", "8cd7cbba57ed6675dd647c9427ba6f7b676d514c4e7e4ad6d27c7d10a665df68"),
    "cmu07/07_03.amc": _cmu07("07_03.amc", "addeabda848943982f97d602bd809884b37beacc247f7e5899b4fa6a5bd7ba6b"),
    "cmu07/07_06.amc": _cmu07("07_06.amc", "274a997bd8a982d23de06c64e531dacd6cce146665c9c16555ac47837ecbc262"),
    "cmu07/07_07.amc": _cmu07("07_07.amc", "c08d87f4de503dd11016dee4deb0793bb1bc9b4a1aa1950d8cfce558b6d6ccdc"),
    "cmu07/07_08.amc": _cmu07("07_08.amc", "e48e8e43c2ff4d01e1fa487b2e4b08cb104ca3b0eaba4ae359ff22aedba5b257"),
    "cmu07/07_09.amc": _cmu07("07_09.amc", "bf88877c6536b3be688b3ca86c1caffeb91162ccd3fbde56e7ef1c73ab149196"),
    "cmu07/07_10.amc": _cmu07("07_10.amc", "523d0dd6d58c66eb9ba301193cbbcb6f4bf006f196f7edffde83d1965f0902fc"),
    "cmu07/07_11.amc": _cmu07("07_11.amc", "7c6245129270f6f378745f41631ba6dcdc45969d3c05e1e7386c4dc534457c24"),
    "spellman_yeast/combined.csv": _github(
        _GPMAT,
        "448538af6b76919cd078f10bf8b39b73f3753cf9",
        "combined.csv",
        "08b4c94987bd961392333d0825ae2cafada2114b1c747abbfab374abad01d708",
    ),
    "robot_wireless/uw-floor.txt": _github(
        _GPMAT,
        "448538af6b76919cd078f10bf8b39b73f3753cf9",
        "SHEFFIELDML0p01/uw-floor.txt",
        "8daa925f365d9101c75ee89ccf51519159e6d105b19827bb60a30f1042a41ad6",
    ),
    "french/french.csv.bz2": Source(
        "the package linearmodels 7.1, linearmodels/datasets/french/french.csv.bz2",
        "fab6482f4f011a2fcec2fd087d740eef3c5bcc24a39459569a4224516fca1b6e",
        obstacle="it is part of a package: pip install linearmodels==7.1 and copy the file",
    ),
    "missa_qcif/missa_qcif.npz": Source(
        "github.com/icyphy/ptII at 5aa3ec8a01d8efa8277d8c709b2a44192fb86126, "
        "ptolemy/domains/sdf/lib/vq/data/seq/missa/missa000.qcf to missa149.qcf",
        "0903990ebbe131a1eb398017c920cc0224f570784d45bac5cb50180ebcbb1f7f",
        obstacle="it was assembled from the luma of 150 single-frame files, which are stored upside down",
    ),
    "mouse/mouse_run_100f_half_gray.npz": Source(
        "github.com/paninski-lab/lightning-pose at f54c4778",
        "97c2cd68fd2f1598a572f5f7feb45bee8129efb46410f833876d6e904c1412d9",
        obstacle="it was converted from a film there: grey, half size, 100 frames",
    ),
    "ocean64/ocean64_gray.npz": Source(
        "github.com/gpeyre/2013-SIIMS-gaussian-textures at e82a245",
        "ed099f54831df374732a8a799b4d992777eed69ce734fe56d561cdc2ad2df4f0",
        obstacle=_NO_LICENCE,
    ),
    "seawave/seawave_half_gray.npz": Source(
        "github.com/zhuziqi/Dynamic_Texture_Modeling_using_MKGPDM at 23bcbb4",
        "e3ebab10d6c7bdf9e33f207ccc54a96ab4e22986b6777a52b61fbd5e6a1fccf1",
        obstacle=_NO_LICENCE,
    ),
    "pendulum/pendulum_102f_quarter_gray.npz": Source(
        "github.com/juangomez177/Pendulum_Oscillatory_Motion at 9281de3",
        "d4f214832285a9cec003c0f45a65a83eb6b94f33119619cad3d3b6fdc79609a9",
        obstacle=_NO_LICENCE,
    ),
    "mc_maze/reaches.npz": Source(
        "github.com/yididiyan/ccgpfa at f1bfed8, datasets/MC_Maze_L/, upstream DANDI 000138",
        "119b01102a8721e5912a0e6ba15bee4e72696d7bc17314f4f64bccaaefe0b408",
        obstacle="it was assembled from pickle files there, which this library does not read because they can run code",
    ),
    "jsb/chorales.npz": Source(
        "github.com/czhuang/JSB-Chorales-dataset at 9a7f733ddb4ed91f48da64ac7f0f621c34aadd4d, "
        "jsb-chorales-quarter.json",
        "9f6aa98efd7aaa7efd7414863caecaa252e74569167b8037c6e9b7d437d375ca",
        obstacle="its owner states no licence, and it was converted from lists of notes",
    ),
    "flu/weekly_counts.npz": Source(
        "github.com/cran/surveillance at 75d7e2a, data/fluBYBW.RData",
        "42c978a0d5409dc2a90a3307b65c5dd95c1229bdee17e2e06a8e2a645e33d182",
        obstacle="it was converted from a file of R",
    ),
}


def data_folder(data_home: PathLike | None = None) -> Path:
    """The folder of data files: ``data_home``, else ``$PYRO_VGPDS_DATA``, else ``pyro_vgpds`` in the user's cache.

    The cache is ``$XDG_CACHE_HOME``, or ``~/.cache`` if that is not set. The folder is not created.

    :param data_home: a folder that takes precedence over all others.

    >>> from pyro_vgpds.datasets import data_folder
    >>> data_folder("my_data").name
    'my_data'
    """
    check_path("data_home", data_home, optional=True)
    if data_home is not None:
        return Path(data_home).expanduser()
    if home := os.environ.get(_ENVIRONMENT):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyro_vgpds"


def find_file(name: str, data_home: PathLike | None = None, download: bool = False) -> Path:
    """The path of a data file, downloaded first if it is missing and ``download`` is true.

    An existing file is used without a check; a downloaded file is checked.

    :param name: its path in the data folder, a key of :data:`~pyro_vgpds.datasets.cache.SOURCES`.
    :param data_home: as for :func:`data_folder`.
    :param download: download a missing file from its pinned URL and check its sha256. Needs ``pyro_vgpds[data]``.
    :raises FileNotFoundError: if the file is missing and ``download`` is false, or it has no pinned URL.
    :raises OSError: if the download fails or its checksum is wrong.

    >>> from pyro_vgpds.datasets import find_file
    >>> find_file("cmu35/35.asf", data_home="nowhere")
    Traceback (most recent call last):
    FileNotFoundError: cmu35/35.asf is not in the data folder nowhere; it comes from github.com/SheffieldML/GPmat...
    """
    check_path("name", name)
    check_flags(download=download)
    folder = data_folder(data_home)
    path = folder / name
    if path.is_file():
        return path
    source = SOURCES.get(name, Source("an unknown source", "", obstacle="this library does not know its URL"))
    where = f"{name} is not in the data folder {folder}; it comes from {source.origin}."
    how = f"Copy it there, or pass the folder that has it as data_home= or in the environment variable {_ENVIRONMENT}."
    if source.url is None:
        raise FileNotFoundError(f"{where} It cannot be downloaded automatically: {source.obstacle}. {how}")
    if not download:
        raise FileNotFoundError(f"{where} Pass download=True to download it. Or: {how[0].lower()}{how[1:]}")
    pooch = require("pooch", "data")
    try:
        pooch.retrieve(source.url, f"sha256:{source.sha256}", fname=path.name, path=path.parent, progressbar=False)
    except (OSError, ValueError) as error:  # pooch raises a ValueError for a wrong checksum
        raise OSError(f"cannot download {name} from {source.url} into {path.parent}: {error}") from error
    return path
