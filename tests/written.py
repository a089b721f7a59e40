# SPDX-License-Identifier: Apache-2.0
"""The csv files and pictures of commands as tests write and read them."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image


def write_csv(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def parse_csv(text):
    """The header, and the rows of cells."""
    header, *rows = csv.reader(text.splitlines())
    return header, rows


def read_csv(path):
    return parse_csv(Path(path).read_text())


def assert_picture_is_drawn(file):
    with Image.open(file) as picture:
        assert np.asarray(picture.convert("L")).std() > 5
