# SPDX-License-Identifier: Apache-2.0
"""Skeletons, Acclaim files, and forward kinematics against facts known otherwise."""

import numpy as np
import pytest
import torch

from pyro_vgpds.datasets import (
    Skeleton,
    channels_from_features,
    features_from_channels,
    load_cmu35,
    load_cmu_mocap,
    make_gait,
    read_amc,
    read_asf,
    stick_figure,
)

ASF = """# a comment
:version 1.10
:units
  mass 1.0
  length 0.5
  angle deg
:root
   order TX TY TZ RX RY RZ
   axis XYZ
   position 0 1 0
   orientation 0 0 0
:bonedata
  begin
     id 1
     name hand
     direction 0 0 1
     length 2
     axis 0 0 0 XYZ
     dof rx rz
     limits (-160.0 20.0)
            (-70.0 70.0)
  end
  begin
     id 2
     name arm
     direction 1 0 0
     length 3
     axis 0 0 90 XYZ
     dof rx ry rz
  end
  begin
     id 3
     name stump
     direction 0 -1 0
     length 1
     axis 0 0 0 XYZ
  end
:hierarchy
  begin
    root arm stump
    arm hand
  end
"""
#        root.tx ty tz rx ry rz, hand.rx rz, arm.rx ry rz: the order of the .asf file
ROWS = [
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [1, 2, 3, 0, 0, 90, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 90, 0, 0],
    [0, 0, 0, 0, 0, 0, 90, 0, 0, 0, 90],
]


def amc_text(rows, first=1, header=":FULLY-SPECIFIED\n:DEGREES\n", end="\n"):
    lines = ["#!OML:ASF nothing", *header.split()]
    for number, row in enumerate(rows, first):
        lines += [str(number), "root " + " ".join(map(str, row[:6])), "arm " + " ".join(map(str, row[8:]))]
        lines += ["hand " + " ".join(map(str, row[6:8]))]
    return end.join(lines) + end


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "09.asf").write_text(ASF)
    (tmp_path / "09_01.amc").write_text(amc_text(ROWS))
    (tmp_path / "09_02.amc").write_bytes(amc_text(ROWS[:3], first=10, end="\r\n").encode())
    return tmp_path


def test_read_asf(folder):
    skeleton = read_asf(folder / "09.asf")
    assert skeleton.joints == ("root", "arm", "hand", "stump")  # every parent first
    assert skeleton.parents == (-1, 0, 1, 0)
    assert skeleton.bones == [(0, 1), (1, 2), (0, 3)]
    assert skeleton.channels[:7] == ("root.tx", "root.ty", "root.tz", "root.rx", "root.ry", "root.rz", "hand.rx")
    assert skeleton.channels[8:] == ("arm.rx", "arm.ry", "arm.rz")
    assert skeleton.metres == pytest.approx(0.0508)
    np.testing.assert_allclose(skeleton.rest(), [[0, 1, 0], [3, 1, 0], [3, 1, 2], [0, 0, 0]], atol=1e-12)


def test_positions_by_hand(folder):
    skeleton = read_asf(folder / "09.asf")
    places = skeleton.positions(np.array(ROWS, dtype=float))
    # the root moved and turned by 90 degrees about z: x goes to y
    np.testing.assert_allclose(places[1], [[1, 3, 3], [1, 6, 3], [1, 6, 5], [2, 3, 3]], atol=1e-12)
    # the arm turned about its own x, which is the room's y: x goes to -z, and z to x
    np.testing.assert_allclose(places[2], [[0, 1, 0], [0, 1, -3], [2, 1, -3], [0, 0, 0]], atol=1e-12)
    # the arm up, and the hand about x within it: z to -y in the arm's frame, which is the room's x
    np.testing.assert_allclose(places[3], [[0, 1, 0], [0, 4, 0], [2, 4, 0], [0, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(skeleton.positions(np.array(ROWS[2], dtype=float)), places[2])


def test_order_of_rotations():
    """Against products of matrices: the first channel is done first, about axes that do not turn."""
    skeleton = Skeleton(("root", "tip"), (-1, 0), np.array([[0, 0, 0], [1, 2, 3.0]]), ("tip.rx", "tip.ry", "tip.rz"))
    a, b, c = np.radians([20.0, -35.0, 50.0])
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    about_y = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    about_z = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    tip = skeleton.positions(np.array([20.0, -35.0, 50.0]))[1]
    np.testing.assert_allclose(tip, about_z @ about_y @ about_x @ [1, 2, 3])


def test_read_amc(folder):
    skeleton = read_asf(folder / "09.asf")
    frames, channels = read_amc(folder / "09_01.amc", skeleton)
    np.testing.assert_array_equal(frames, [1, 2, 3, 4])
    np.testing.assert_array_equal(channels, ROWS)
    frames, channels = read_amc(folder / "09_02.amc", skeleton)  # starts at frame 10
    np.testing.assert_array_equal(frames, [10, 11, 12])
    np.testing.assert_array_equal(channels, ROWS[:3])
    turned = [[1.0, 2.0, 3.0] + [np.pi / 2] * 8]
    (folder / "09_03.amc").write_text(amc_text(turned, header=":FULLY-SPECIFIED\n:RADIANS\n"))
    np.testing.assert_allclose(read_amc(folder / "09_03.amc", skeleton)[1], [[1, 2, 3] + [90] * 8])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\nleg 1 2\n", "line 2: 'leg 1 2' does not match the skeleton, which has no bone 'leg'"),
        ("1\narm 1 2\n", "which has 3 numbers for 'arm'"),
        ("arm 1 2 3\n", "the line comes before the first frame number"),
        ("1\narm 1 2 x\n", "line 2: could not convert string to float: 'x'"),
        (":DEGREES\n", "it has no frames"),
        ("1\narm 1 2 3\n", r"frame 1 has no root.tx. Is the file truncated\?"),
        (
            amc_text(ROWS[:1]) + amc_text(ROWS[:1]),
            "frame numbers must increase, but 1 follows",
        ),
    ],
)
def test_bad_amc(folder, text, message):
    (folder / "bad.amc").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_amc(folder / "bad.amc", read_asf(folder / "09.asf"))
    assert "bad.amc" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":hierarchy", ":nothing", "it has no section ':hierarchy'"),
        ("    arm hand\n", "", "':hierarchy' gives no parent for hand"),
        ("    root arm stump\n", "    hand arm\n    root stump\n", "does not connect every bone to the root"),
        ("direction 0 0 1", "direction 0 1", r"expected three numbers, but got \['0', '1'\]"),
        ("direction 0 0 1", "heading 0 0 1", "'direction'"),
        ("axis 0 0 90 XYZ", "axis 0 0 90", "list index out of range"),
        ("dof rx rz", "dof rx l", "channel 'hand.l' must be a joint with"),
    ],
)
def test_bad_asf(tmp_path, old, new, message):
    (tmp_path / "bad.asf").write_text(ASF.replace(old, new))
    with pytest.raises(ValueError, match=message) as caught:
        read_asf(tmp_path / "bad.asf")
    assert "bad.asf" in str(caught.value)


def test_bad_skeletons():
    offsets = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"2 joints need 2 parents and offsets \(2, 3\), but got 1 parents"):
        Skeleton(("root", "tip"), (-1,), offsets, ())
    with pytest.raises(ValueError, match=r"axes must be \(2, 3, 3\), but got \(3, 3\)"):
        Skeleton(("root", "tip"), (-1, 0), offsets, (), np.eye(3))
    with pytest.raises(ValueError, match="parent of joint 1, 'tip', must precede it, but is 1"):
        Skeleton(("root", "tip"), (-1, 1), offsets, ())
    with pytest.raises(ValueError, match=r"channel 'tip.tx' must be a joint with '.rx'"):
        Skeleton(("root", "tip"), (-1, 0), offsets, ("tip.tx",))
    with pytest.raises(ValueError, match="names of joints and of channels must be unique"):
        Skeleton(("root", "tip"), (-1, 0), offsets, ("tip.rx", "tip.rx"))
    with pytest.raises(ValueError, match=r"channels must be \(T, 23\), but got \(2, 3\)"):
        stick_figure().positions(np.zeros((2, 3)))


def test_load_cmu_mocap(folder):
    motion = load_cmu_mocap(9, folder=folder, every=2, fps=60)
    assert motion.names == ["09_01", "09_02"]
    np.testing.assert_allclose(motion.t[1], [0, 2 / 60])
    np.testing.assert_array_equal(motion.channels[0], [ROWS[0], ROWS[2]])
    assert motion.positions(0).shape == (2, 4, 3)
    data = motion.sequences()
    assert (data.num_sequences, data.num_outputs, data.columns[0]) == (2, 11, "root.tx")
    assert "NSF EIA-0196217" in motion.terms
    assert load_cmu_mocap("09", ["2"], folder=folder).names == ["09_02"]
    (folder / "cmu09").mkdir()
    for name in ("09.asf", "09_01.amc"):
        (folder / name).rename(folder / "cmu09" / name)
    assert load_cmu_mocap(9, data_home=folder).names == ["09_01"]


def test_pinned_trials_are_fetched(folder, monkeypatch):
    """Where trials are not named: those in the folder, and with download=True those with an address."""
    home = folder / "cmu35"
    home.mkdir()
    (folder / "09.asf").rename(home / "35.asf")
    (folder / "09_01.amc").rename(home / "35_02.amc")
    served, asked = (folder / "09_02.amc").read_text(), []

    def fetch(url, known_hash, fname, path, progressbar):
        asked.append(url)
        (path / fname).write_text(served)

    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "retrieve", fetch)
    assert load_cmu_mocap(35, data_home=folder).names == ["35_02"]
    assert load_cmu_mocap(35, folder=home, download=True).names == ["35_02"]  # a folder of the user
    assert not asked
    (home / "35_02.amc").unlink()
    assert load_cmu_mocap(35, data_home=folder, download=True).names == ["35_01"]
    assert len(asked) == 1
    assert asked[0].endswith("/35_01.amc")


def test_load_cmu_mocap_refuses(folder):
    with pytest.raises(FileNotFoundError, match=r"09_05.amc is not in .*; mocap.cs.cmu.edu has it under subject 9"):
        load_cmu_mocap(9, [5], folder=folder)
    with pytest.raises(FileNotFoundError, match=r"12.asf is not in"):
        load_cmu_mocap(12, folder=folder)
    with pytest.raises(FileNotFoundError, match=r"cmu07/07.asf is not in the data folder .* cannot be downloaded"):
        load_cmu_mocap(7, data_home=folder, download=True)
    (folder / "cmu07").mkdir()
    (folder / "cmu07" / "07.asf").write_text(ASF)  # nothing of this subject can be fetched
    with pytest.raises(FileNotFoundError, match=r"no trial 07_\*.amc in .*cmu07"):
        load_cmu_mocap(7, data_home=folder, download=True)
    for path in folder.glob("*.amc"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no trial 09_\*.amc in"):
        load_cmu_mocap(9, folder=folder)
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, but got 0"):
        load_cmu_mocap(9, folder=folder, every=0)
    with pytest.raises(ValueError, match="subject and trials must be numbers such as 7 or '07', but got 'walk'"):
        load_cmu_mocap("walk", folder=folder)


def bone_lengths(skeleton, places):
    parents, joints = zip(*skeleton.bones, strict=True)
    return np.linalg.norm(places[:, joints] - places[:, parents], axis=-1)


@pytest.mark.data
def test_subject_07(data_home):
    motion = load_cmu_mocap("07", data_home=data_home)
    assert len(motion.names) == 9
    assert motion.sequences().num_outputs == 62
    third = motion.names.index("07_03")  # its first frame is number 10
    assert len(motion.t[third]) == 406
    assert motion.t[third][0] == 0
    expected = np.linalg.norm(motion.skeleton.offsets[1:], axis=1)
    head, toes = motion.skeleton.joints.index("head"), motion.skeleton.joints.index("ltoes")
    for s, channels in enumerate(motion.channels):
        places = motion.positions(s)
        np.testing.assert_allclose(
            bone_lengths(motion.skeleton, places), np.tile(expected, (len(places), 1)), rtol=1e-9
        )
        np.testing.assert_allclose(places[:, 0], channels[:, :3])
        metres = motion.skeleton.metres * places
        assert 1.4 < metres[:, head, 1].mean() < 1.7  # a person upright
        assert -0.05 < metres[:, toes, 1].min() < 0.1  # whose toes come down to the floor
        assert np.abs(metres[:, :, 1].min(1)).max() < 0.2  # and who never flies
    rest = motion.skeleton.rest()
    assert rest[:, 1].argmax() == head
    # arms stretched out to the sides, of equal height
    hands = [motion.skeleton.joints.index(name) for name in ("lhand", "rhand")]
    assert rest[hands[0], 0] > 8
    assert rest[hands[1], 0] < -8


@pytest.mark.data
def test_cmu35(data_home):
    data = load_cmu35(data_home=data_home)
    assert len(data.y) == 31
    lengths = [len(part) for part in data.y]
    assert (sum(lengths), min(lengths), max(lengths)) == (2613, 34, 113)
    assert (data.test_y.shape, data.test_channels.shape, data.scale.shape) == ((124, 59), (124, 62), (50,))
    assert [part.shape for part in data.channels] == [(n, 62) for n in lengths]
    np.testing.assert_allclose(data.test_t, 0.05 * np.arange(124))
    hidden = data.hide(data.test_y, "legs")
    assert np.isnan(hidden).sum() == 62 * 7
    assert np.isnan(hidden[62:, 7:14]).all()
    assert np.isnan(data.hide(data.test_y, "body")[62:, 20:50]).all()
    with pytest.raises(ValueError, match="block must be one of 'legs', 'body', but got 'arms'"):
        data.hide(data.test_y, "arms")
    with pytest.raises(ValueError, match=r"truth and prediction must be \(N, 59\), but got \(124, 59\) and \(3, 59\)"):
        data.score(data.test_y, data.test_y[:3], "legs")
    assert data.score(data.test_y, torch.tensor(data.test_y, requires_grad=True), "legs") == {"SC": 0.0, "RA": 0.0}
    np.testing.assert_allclose(bone_lengths(data.skeleton, data.positions(5)).std(0), 0, atol=1e-10)
    # the first training sequence is every fourth frame of 35_01.amc, without the first
    motion = load_cmu_mocap(35, [1], every=4, data_home=data_home)
    np.testing.assert_allclose(motion.channels[0][1:], data.channels[0], atol=1e-9)
    # and back: all that was folded or omitted is small while walking
    back = channels_from_features(data.y[0], start=motion.channels[0][0])
    kept = data.skeleton.joints.index("head")
    np.testing.assert_allclose(data.skeleton.positions(back)[:, kept], data.positions(0)[:, kept], atol=1e-6)


def test_cmu35_from_small_files(tmp_path):
    io = pytest.importorskip("scipy.io")
    home = tmp_path / "cmu35"
    home.mkdir()
    rng = np.random.default_rng(0)
    rows, test = rng.standard_normal((9, 62)), rng.standard_normal((7, 62))
    labels = np.repeat(np.eye(2), [5, 4], 0)
    io.savemat(
        home / "cmu35WalkJog.mat", {"Y": rows, "lbls": labels, "Ytest": test, "lblstest": np.eye(2)[[0, 0] + [1] * 5]}
    )
    io.savemat(home / "cmu35TaylorScaleBias.mat", {"scale": np.arange(59.0)[None], "bias": np.zeros((1, 59))})
    with pytest.raises(FileNotFoundError, match=r"cmu35/35.asf is not in the data folder .* Pass download=True to"):
        load_cmu35(data_home=tmp_path)
    (home / "35.asf").write_text(ASF)
    data = load_cmu35(data_home=tmp_path)
    assert [part.shape for part in data.y] == [(4, 59), (3, 59)]
    np.testing.assert_allclose(data.y[1], features_from_channels(rows[5:]))
    np.testing.assert_allclose(data.test_y, features_from_channels(test[2:]))
    np.testing.assert_array_equal(data.channels[0], rows[1:5])
    np.testing.assert_array_equal(data.scale, np.arange(9, 59))
    guess = np.array(data.test_y)
    guess[2:, 7:14] += 0.1  # the second half of four rows
    score = data.score(data.test_y, guess, "legs")
    assert score["RA"] == pytest.approx(np.degrees(0.1))
    assert score["SC"] == pytest.approx(2 * np.sum((np.degrees(0.1) * np.arange(16, 23)) ** 2) / 7)
    assert data.score(data.test_y, guess, "body") == {"SC": 0.0, "RA": 0.0}


def test_features_round_trip():
    rng = np.random.default_rng(0)
    channels = np.cumsum(rng.standard_normal((20, 62)), 0)
    features = features_from_channels(channels)
    assert features.shape == (19, 59)
    back = channels_from_features(features, start=channels[0])
    left_out = [38, 39, 47, 50, 51, 59]
    kept = np.setdiff1d(np.arange(62), left_out)
    np.testing.assert_allclose(back[:, kept], channels[1:, kept], atol=1e-8)
    assert (back[:, left_out] == 0).all()
    # the definition, entry by entry, for one frame
    sine = np.sin(np.radians(channels))
    np.testing.assert_allclose(features[4, :32], np.radians(channels[5, 6:38]))
    np.testing.assert_allclose(features[4, 50:53], [*(channels[4] - channels[5])[[0, 2]], channels[5, 1]])
    np.testing.assert_allclose(features[4, 53:56], [sine[5, 3], sine[5, 5], sine[4, 4] - sine[5, 4]])
    with pytest.raises(ValueError, match=r"channels must be \(N, 62\) with N >= 2, but got \(1, 62\)"):
        features_from_channels(channels[:1])
    with pytest.raises(ValueError, match=r"features must be \(N, 59\) and start \(62,\), but got \(20, 62\)"):
        channels_from_features(channels)


def test_gait():
    motion = make_gait(num_sequences=5, length=(30, 50), noise=0.0, seed=3)
    again = make_gait(num_sequences=5, length=(30, 50), noise=0.0, seed=3)
    other = make_gait(num_sequences=5, length=(30, 50), noise=0.0, seed=4)
    np.testing.assert_array_equal(np.concatenate(motion.y), np.concatenate(again.y))
    assert [len(a) for a in motion.t] != [len(a) for a in other.t]
    assert motion.names == ["walk", "run", "march", "walk", "run"]
    assert all(30 <= len(a) <= 50 for a in motion.t)
    assert len({len(a) for a in motion.t}) > 1
    data = motion.sequences()
    assert (data.num_sequences, data.num_outputs) == (5, len(motion.skeleton.channels))
    feet = [i for i, name in enumerate(motion.skeleton.joints) if name.endswith(("ankle", "toe"))]
    expected = np.linalg.norm(motion.skeleton.offsets[1:], axis=1)
    for s in range(5):
        places = motion.positions(s)
        np.testing.assert_allclose(places[:, feet, 1].min(1), 0, atol=1e-9)  # it stands on the ground
        np.testing.assert_allclose(bone_lengths(motion.skeleton, places), np.tile(expected, (len(places), 1)))
        np.testing.assert_allclose(np.linalg.norm(motion.latent[s], axis=1), 1)
    assert np.std(make_gait(noise=2.0, seed=3).y[0] - make_gait(noise=0.0, seed=3).y[0]) == pytest.approx(2.0, rel=0.1)


def test_gait_refuses():
    with pytest.raises(ValueError, match="num_sequences must be a whole number of at least 1, but got 0"):
        make_gait(num_sequences=0)
    with pytest.raises(ValueError, match=r"styles must be some of walk, run, march, stroll, but got \['fly'\]"):
        make_gait(styles=["walk", "fly"])
    with pytest.raises(ValueError, match=r"styles must be some of .*, but got \[\]"):
        make_gait(styles=[])
