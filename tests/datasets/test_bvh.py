# SPDX-License-Identifier: Apache-2.0
"""BVH files: their content, forward kinematics against matrices written out, and errors that name file and line."""

import tracemalloc

import numpy as np
import pytest

from pyro_vgpds import load_posterior
from pyro_vgpds.cli import main
from pyro_vgpds.datasets import Motion, Skeleton, bvh, load_bvh, read_bvh
from pyro_vgpds.plotting import animate_poses, plot_poses, save_animation

HIERARCHY = """HIERARCHY
ROOT Hips
{
\tOFFSET 5.0 6.0 7.0
\tCHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation
\tJOINT Left Leg
\t{
\t\tOFFSET 1 -2 0.5
\t\tCHANNELS 3 Yrotation Zrotation Xrotation
\t\tEnd Site
\t\t{
\t\t\tOFFSET 0 -3 1
\t\t}
\t}
\tjoint Arm.R { offset 0 4 0
\t\tchannels 4 xrotation Zposition Yrotation xposition
\t\tEnd Site { OFFSET 2 0 0 } End Site
\t\t{
\t\t\tOFFSET 0 0 1e-1
\t\t} }
}
"""
ROWS = [
    [0] * 13,
    [1, 2, 3, 20, -30, 40, 50, -60, 70, 15, 0.3, -25, 0.7],
    [-1, 0.5, 2, 200, 10, -100, 5, 6, 7, 80, -2, 90, 1],
]


def motion(rows, frames=None, seconds="0.025"):
    lines = [" ".join(map(str, row)) for row in rows]
    return "\n".join(["MOTION", f"Frames: {len(rows) if frames is None else frames}", f"Frame Time: {seconds}", *lines])


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "walk.bvh"
    file.write_text(HIERARCHY + motion(ROWS) + "\n\n")
    return file


def turn(axis, degrees):
    a = np.radians(degrees)
    c, s = np.cos(a), np.sin(a)
    return np.array({
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }[axis])  # fmt: skip


def test_content(path):
    skeleton, seconds, channels = read_bvh(path)
    assert skeleton.joints == ("Hips", "Left Leg", "Left Leg_end", "Arm.R", "Arm.R_end", "Arm.R_end2")
    assert skeleton.parents == (-1, 0, 1, 0, 3, 3)
    assert skeleton.channels[:6] == ("Hips.tx", "Hips.ty", "Hips.tz", "Hips.rz", "Hips.rx", "Hips.ry")
    assert skeleton.channels[6:] == (
        "Left Leg.ry", "Left Leg.rz", "Left Leg.rx", "Arm.R.rx", "Arm.R.tz", "Arm.R.ry", "Arm.R.tx",
    )  # fmt: skip
    assert seconds == 0.025
    np.testing.assert_array_equal(channels, ROWS)
    np.testing.assert_array_equal(skeleton.offsets[[0, 5]], [[5, 6, 7], [0, 0, 0.1]])


@pytest.mark.parametrize("row", [1, 2])
def test_positions_against_matrices(path, row):
    """Products of 4 x 4 matrices, a joint after the other."""

    def step(offset, *turns):
        local = np.eye(4)
        local[:3, 3] = offset
        for axis, degrees in turns:
            around = np.eye(4)
            around[:3, :3] = turn(axis, degrees)
            local = local @ around
        return local

    v = ROWS[row]
    hips = step(v[:3], ("z", v[3]), ("x", v[4]), ("y", v[5]))  # positions replace the offset
    leg = hips @ step([1, -2, 0.5], ("y", v[6]), ("z", v[7]), ("x", v[8]))
    arm = hips @ step([v[12], 4, v[10]], ("x", v[9]), ("y", v[11]))
    wanted = [hips, leg, leg @ step([0, -3, 1]), arm, arm @ step([2, 0, 0]), arm @ step([0, 0, 0.1])]
    found = load_bvh(path).positions(0)[row]
    np.testing.assert_allclose(found, [m[:3, 3] for m in wanted], atol=1e-12)


def test_rest_and_lengths(path):
    skeleton, _, channels = read_bvh(path)
    rest = [[5, 6, 7], [6, 4, 7.5], [6, 1, 8.5], [5, 10, 7], [7, 10, 7], [5, 10, 7.1]]
    np.testing.assert_allclose(skeleton.rest(), rest, atol=1e-12)
    places = skeleton.positions(channels)
    np.testing.assert_allclose(np.linalg.norm(places[:, 2] - places[:, 1], axis=1), np.sqrt(10.0))  # rigid
    np.testing.assert_allclose(skeleton.positions(channels[1]), places[1])


def test_several_files(path):
    other = path.with_name("run.bvh")
    other.write_text(HIERARCHY.replace("5.0 6.0 7.0", "0 0 0") + motion(ROWS * 3, seconds="0.05"))
    both = load_bvh([path, str(other)], every=2, metres=0.01)
    assert isinstance(both, Motion)
    assert both.names == ["walk", "run"]
    assert both.skeleton.metres == 0.01
    assert both.columns == list(both.skeleton.channels)
    np.testing.assert_allclose(both.t[0], [0.0, 0.05])
    np.testing.assert_allclose(both.t[1], [0.0, 0.1, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(both.y[1], (ROWS * 3)[::2])
    assert both.y[1].base is None  # dropped frames are not kept
    assert both.description == "walk.bvh and others, 6 joints, 10 to 20 frames per second"
    assert both.sequences().num_sequences == 2
    assert load_bvh(path).description == "walk.bvh, 6 joints, 40 frames per second"


def test_windows_line_ends(path):
    text = path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(text)
    np.testing.assert_array_equal(load_bvh(path).y[0], ROWS)


def test_pictures(path, tmp_path):
    walk = load_bvh(path)
    assert plot_poses(walk.skeleton, walk.positions(0), frames=[0, 1]) is not None
    film = animate_poses(walk.skeleton, {"walk": walk.positions(0)})
    assert save_animation(film, tmp_path / "walk.gif").stat().st_size > 0


END = HIERARCHY.count("\n")
START = "HIERARCHY\nROOT a\n{\nOFFSET 0 0 0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 0: expected 'HIERARCHY', but the file ends. Is it truncated?"),
        ("hello\n", "line 1: expected 'HIERARCHY', but got 'hello'"),
        ("HIERARCHY now\n", "line 1: expected nothing after 'HIERARCHY'"),
        ("HIERARCHY\nJOINT a\n", "line 2: expected 'ROOT', but got 'JOINT a'"),
        ("HIERARCHY\nROOT\n{", "line 2: expected a name after 'ROOT'"),
        ("HIERARCHY\nROOT a\nOFFSET 0 0 0", "line 3: expected '{', but got 'OFFSET 0 0 0'"),
        ("HIERARCHY\nROOT a\n{\nOFFSET 0 0\n", "line 4: the offset of 'a' must be 3 numbers, but got 2"),
        ("HIERARCHY\nROOT a\n{\nOFFSET 0 0 nan\n", "line 4: the offset of 'a' must be finite numbers, but got 'nan'"),
        ("HIERARCHY\nROOT a\n{\nOFFSET 0 0 o\n", "line 4: the offset of 'a' must be finite numbers, but got 'o'"),
        (START + "}\n", "line 5: the skeleton has no channels"),
        (
            START + "CHANNELS 3 Xrotation Yrotation\n",
            "line 5: CHANNELS of 'a' promises 3 names, but 2 follow",
        ),
        (START + "CHANNELS x\n", "line 5: the number of channels of 'a' must be a whole num"),
        (
            START + "CHANNELS 1 Wrotation\n",
            "line 5: unknown channel 'Wrotation' of 'a'; known: Xposition, Xrotation, Yposition",
        ),
        (START + "CHANNELS 2 Xrotation XROTATION\n", "line 5: a channel of 'a' occurs twice"),
        (
            START + "CHANNELS 1 Xrotation\nCHANNELS 1 Yrotation\n",
            "line 6: 'a' has CHANNELS twice",
        ),
        (
            START + "BONE b\n",
            "line 5: expected 'CHANNELS', 'JOINT', 'End Site' or '}' in 'a', but got 'BONE b'",
        ),
        (START + "JOINT a\n{", "line 5: the name 'a' of a joint occurs twice"),
        (START + "End Site\n{\nOFFSET 0 0 0\nJOINT b", "line 8: expected '}', but got 'JOINT b'"),
        (START, "line 4: expected '}', but the file ends. Is it truncated?"),
        (HIERARCHY, f"line {END}: expected 'MOTION', but the file ends"),
        (HIERARCHY + "MOTION\nFrames: many\n", f"line {END + 2}: the number of frames must be a whole number"),
        (HIERARCHY + "MOTION\nFrames: 2\nTime: 1\n", f"line {END + 3}: expected 'Frame Time:', but got 'Time: 1'"),
        (HIERARCHY + motion(ROWS, seconds="0"), f"line {END + 3}: the number of frames and the frame time must"),
        (HIERARCHY + motion([], seconds="1"), "must be positive, but are 0 and 1"),
        (HIERARCHY + motion(ROWS, seconds="nan"), f"line {END + 3}: the frame time must be finite numbers"),
        (HIERARCHY + motion(ROWS, frames=2), f"line {END + 6}: 'Frames: 2' is followed by more than 2 frames"),
        (
            HIERARCHY + motion(ROWS, frames=10**11),
            f"line {END + 6}: 'Frames: 100000000000' is followed by 3 frames, then the file ends. Is it truncated?",
        ),
        (
            HIERARCHY + motion([ROWS[0], ROWS[1][:-1]]),
            f"line {END + 5}: the channels of frame 1 must be 13 numbers, but got 12",
        ),
        (HIERARCHY + motion([[0] * 12 + ["NaN"]]), f"line {END + 4}: the channels of frame 0 must be finite numbers"),
        (HIERARCHY + motion([[0] * 12 + ["inf"]]), "must be finite numbers, but got 'inf'"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path, text, message):
    path = tmp_path / "bad.bvh"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_bvh(path)
    assert str(error.value).startswith(f"{path}, {message}" if message.startswith("line") else f"{path}, line ")
    assert message in str(error.value)


def test_every_truncation_is_noticed(path, tmp_path):
    """A file that is cut anywhere before its last number is an error, never an incomplete motion."""
    text = path.read_text().rstrip()
    short = tmp_path / "short.bvh"
    for end in range(0, len(text) - len(text.split()[-1]), 7):
        short.write_text(text[:end])
        with pytest.raises(ValueError, match=r"short\.bvh, line "):
            read_bvh(short)


def test_memory_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "long.bvh"
    path.write_text("HIERARCHY\nROOT " + "a" * 3_000_000)
    tracemalloc.start()
    with pytest.raises(ValueError, match="line 2: the line has more than 1,000,000 characters"):
        read_bvh(path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    deep = "".join(f"JOINT j{i}\n{{\nOFFSET 0 1 0\nCHANNELS 1 Xrotation\n" for i in range(2000))
    opened = START + deep
    path.write_text(opened + "}" * 2001 + "\n" + motion([[0] * 2000]))
    assert len(read_bvh(path)[0].joints) == 2001  # no recursion
    monkeypatch.setattr(bvh, "_MOST_JOINTS", 100)
    with pytest.raises(ValueError, match="the skeleton has more than 100 joints"):
        read_bvh(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be a whole number of at least 1, but got 0"),
        ({"metres": 0.0}, "metres must be a positive number, but got 0.0"),
        ({"paths": []}, "paths must be a file or a list of at least one file"),
    ],
)
def test_wrong_arguments(path, arguments, message):
    with pytest.raises(ValueError, match=message):
        load_bvh(**{"paths": path, **arguments})


def test_files_that_do_not_fit_together(path):
    other = path.with_name("other.bvh")
    for old, new, what in (
        ("Left Leg", "Right Leg", "in their joints"),
        ("3 Yrotation Zrotation", "3 Zrotation Yrotation", "in their channels"),
        ("1 -2 0.5", "1 -2.1 0.5", "in the lengths of their bones"),
    ):
        other.write_text(HIERARCHY.replace(old, new) + motion(ROWS))
        with pytest.raises(ValueError, match=f"the skeletons of .*walk.bvh and .*other.bvh differ {what}"):
            load_bvh([path, other])
    with pytest.raises(FileNotFoundError):
        load_bvh(path.with_name("none.bvh"))


def test_skeletons_of_unknown_conventions():
    with pytest.raises(ValueError, match="convention must be 'acclaim' or 'bvh', but got 'fbx'"):
        Skeleton(("a",), (-1,), np.zeros((1, 3)), (), convention="fbx")
    with pytest.raises(ValueError, match="axes must be None with the convention 'bvh'"):
        Skeleton(("a",), (-1,), np.zeros((1, 3)), (), np.eye(3)[None], convention="bvh")
    with pytest.raises(ValueError, match=r"channel 'b.tx' must be"):
        Skeleton(("a", "b"), (-1, 0), np.zeros((2, 3)), ("b.tx",))


def test_command_line(tmp_path, capsys):
    phase = np.arange(16)[:, None] / 3.0 + np.arange(13) / 4.0
    path = tmp_path / "walk.bvh"
    path.write_text(HIERARCHY + motion((20.0 * np.sin(phase)).tolist()))
    model, ahead = tmp_path / "m.safetensors", tmp_path / "ahead.csv"
    size = ["--latent-dim", "2", "--num-inducing", "6", "--steps", "3", "-q"]
    assert main(["fit", str(path), "-o", str(model), *size]) == 0
    trained = load_posterior(model)
    assert trained.columns == list(read_bvh(path)[0].channels)
    np.testing.assert_allclose(trained.data.times.t, np.arange(16) * 0.025)
    assert main(["forecast", str(model), "--until", "0.5", "-o", str(ahead), "-q"]) == 0
    assert ahead.read_text().startswith("time,Hips.tx,Hips.tx lower")
    path.write_text(path.read_text()[:-30])
    assert main(["reconstruct", str(model), str(path), "-q"]) == 1
    assert "walk.bvh, line 40: the channels of frame 15 must be 13 numbers" in capsys.readouterr().err
