# SPDX-License-Identifier: Apache-2.0
"""Where data files are found and how they are fetched; tables; video; generators."""

import bz2
import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pyro_vgpds import datasets
from pyro_vgpds.datasets import base, cache

YEAST = "spellman_yeast/combined.csv"


# finding and fetching


def test_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_VGPDS_DATA", str(tmp_path / "env"))
    assert datasets.data_folder(tmp_path) == tmp_path
    assert datasets.data_folder() == tmp_path / "env"
    monkeypatch.delenv("PYRO_VGPDS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert datasets.data_folder() == tmp_path / "cache" / "pyro_vgpds"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.data_folder() == Path.home() / ".cache" / "pyro_vgpds"
    assert not (tmp_path / "cache").exists()


def test_sources_are_pinned():
    for name, source in cache.SOURCES.items():
        assert len(source.sha256) == 64
        assert source.origin
        if source.url is None:
            assert source.obstacle, name
        else:
            host, commit = "https://raw.githubusercontent.com/", source.url.split("/")[5]
            assert source.url.startswith(host)
            assert len(commit) == 40
            assert set(commit) <= set("0123456789abcdef")


@pytest.mark.data
@pytest.mark.parametrize("name", cache.SOURCES)
def test_checksums(name, data_home):
    path = datasets.find_file(name, data_home)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == cache.SOURCES[name].sha256


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        datasets.load_spellman(data_home=tmp_path)
    for part in (YEAST, str(tmp_path), "github.com/SheffieldML/GPmat", "download=True", "PYRO_VGPDS_DATA"):
        assert part in str(caught.value)
    for load, part in (
        (datasets.load_missa, "assembled from the luma of 150 single-frame files"),
        (datasets.load_french, "pip install linearmodels==7.1"),
        (lambda **options: datasets.load_clip("ocean", **options), "states no licence"),
        (lambda **options: datasets.load_cmu_mocap(7, **options), "full commit of that copy is not known"),
    ):
        with pytest.raises(FileNotFoundError, match="It cannot be downloaded automatically") as caught:
            load(data_home=tmp_path, download=True)
        assert part in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="this library does not know its URL"):
        datasets.find_file("other/file.csv", tmp_path, download=True)
    assert list(tmp_path.iterdir()) == []


def write_yeast(path):
    path.write_text(
        ',"cln3-1","alpha0","alpha7","cdc15_10","cdc15_30","cdc15_50","cdc28_0","elu0","elu30"\n'
        '"YAL001C",0.1,1,2,3,4,5,6,7,8\n"YAL002W",0.2,1.5,,3.5,4.5,5.5,6.5,7.5,8.5\n"YAL003W",9,,,,,,,,\n'
    )


def test_download(tmp_path, monkeypatch):
    """Through pooch itself, from a file as if it were a server."""
    served = tmp_path / "served.csv"
    write_yeast(served)
    digest = hashlib.sha256(served.read_bytes()).hexdigest()
    calls = []

    def fetch(url, output, pooch):
        calls.append(url)
        Path(output).write_bytes(served.read_bytes())

    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch.core, "choose_downloader", lambda url, progressbar=False: fetch)
    source = cache.SOURCES[YEAST]
    monkeypatch.setitem(cache.SOURCES, YEAST, dataclasses.replace(source, sha256=digest))
    home = tmp_path / "home"
    assert datasets.load_spellman(data_home=home, download=True).y[0].shape == (3, 2)
    assert calls == [source.url]
    assert (home / YEAST).is_file()
    datasets.load_spellman(data_home=home, download=True)  # it is there: nothing is fetched
    assert len(calls) == 1

    monkeypatch.setitem(cache.SOURCES, YEAST, source)  # what comes is not what it should be
    with pytest.raises(
        OSError, match=r"cannot download spellman_yeast/combined.csv from https://raw.* into .*other"
    ) as bad:
        datasets.load_spellman(data_home=tmp_path / "other", download=True)
    assert "hash" in str(bad.value)
    assert not (tmp_path / "other" / YEAST).exists()

    def no_network(url, output, pooch):
        raise OSError("no route to host")

    monkeypatch.setattr(pooch.core, "choose_downloader", lambda url, progressbar=False: no_network)
    with pytest.raises(OSError, match="no route to host"):
        datasets.load_spellman(data_home=tmp_path / "other", download=True)


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("pooch", "data", lambda home: datasets.find_file("cmu35/35.asf", home, download=True)),
        ("pandas", "data", lambda home: datasets.load_spellman(data_home=home)),
        ("av", "video", lambda home: datasets.load_video(home / "film.mp4")),
        ("imageio.v3", "video", lambda home: datasets.load_video(home / "film.mp4")),
    ],
)
def test_extras_are_named(module, extra, use, tmp_path, monkeypatch):
    (tmp_path / "spellman_yeast").mkdir()
    write_yeast(tmp_path / YEAST)
    (tmp_path / "film.mp4").write_bytes(b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {module.split('.')[0]}, .*pip install 'pyro_vgpds\[{extra}\]'"):
        use(tmp_path)


@pytest.mark.long
def test_import_is_light():
    """The package does not import what only some loaders need."""
    code = "import sys, pyro_vgpds.datasets, pyro_vgpds.baselines; print([m for m in %r if m in sys.modules])"
    names = ["scipy", "pandas", "pooch", "imageio", "av"]
    result = subprocess.run([sys.executable, "-c", code % names], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# tables


def test_spellman(tmp_path):
    (tmp_path / "spellman_yeast").mkdir()
    write_yeast(tmp_path / YEAST)
    data = datasets.load_spellman(data_home=tmp_path)
    np.testing.assert_array_equal(data.t[0], [10, 30, 50])
    np.testing.assert_array_equal(data.y[0], [[3, 3.5], [4, 4.5], [5, 5.5]])
    assert data.columns == ["YAL001C", "YAL002W"]
    alpha = datasets.load_spellman("alpha", complete=False, data_home=tmp_path)
    np.testing.assert_array_equal(alpha.y[0], [[1, 1.5], [2, np.nan]])
    every = datasets.load_spellman(None, data_home=tmp_path)
    assert every.names == ["alpha", "cdc15", "cdc28", "elu"]
    assert [len(a) for a in every.t] == [2, 3, 1, 2]
    assert every.columns == ["YAL001C"]
    with pytest.raises(ValueError, match="experiment must be one of 'alpha', 'cdc15', 'cdc28', 'elu', but got 'cln3'"):
        datasets.load_spellman("cln3", data_home=tmp_path)


def test_robot(tmp_path):
    (tmp_path / "robot_wireless").mkdir()
    (tmp_path / "robot_wireless" / "uw-floor.txt").write_text(
        "100.5 00:b 1.5 2.5 -60\n100.5 00:a 1.5 2.5 -70\n102.0 00:b 2.5 3.5 -61\n"
    )
    data = datasets.load_robot_wireless(data_home=tmp_path)
    np.testing.assert_allclose(data.t[0], [0, 1.5])
    np.testing.assert_array_equal(data.y[0], [[-70, -60], [np.nan, -61]])
    np.testing.assert_array_equal(data.latent[0], [[1.5, 2.5], [2.5, 3.5]])
    assert data.columns == ["00:a", "00:b"]


def test_french(tmp_path):
    (tmp_path / "french").mkdir()
    text = "dates,MktRF,SMB\n1949-11-01,0.1,0.2\n1949-12-01,0.3,0.4\n1950-02-01,0.5,0.6\n"
    (tmp_path / "french" / "french.csv.bz2").write_bytes(bz2.compress(text.encode()))
    data = datasets.load_french(data_home=tmp_path)
    np.testing.assert_array_equal(data.t[0], [0, 1, 3])
    assert data.dates[0][2] == np.datetime64("1950-02-01")
    assert data.sequences().columns == ["MktRF", "SMB"]


@pytest.mark.data
def test_real_tables(data_home):
    sizes = {"alpha": (18, 4489), "cdc15": (24, 4381), "cdc28": (17, 1383), "elu": (14, 5766)}
    for name, shape in sizes.items():
        assert datasets.load_spellman(name, data_home=data_home).y[0].shape == shape
    steps = np.diff(datasets.load_spellman(data_home=data_home).t[0])
    assert set(steps) == {10, 20}
    every = datasets.load_spellman(None, complete=False, data_home=data_home).sequences()
    assert (every.num_frames, every.num_outputs) == (73, 6178)
    robot = datasets.load_robot_wireless(data_home=data_home)
    assert robot.y[0].shape == (394, 30)
    assert np.isnan(robot.y[0]).mean() == pytest.approx(0.53, abs=0.005)
    assert robot.latent[0].shape == (394, 2)
    french = datasets.load_french(data_home=data_home)
    assert french.y[0].shape == (819, 35)
    assert french.dates[0][0] == np.datetime64("1949-01-01")
    np.testing.assert_array_equal(french.t[0], np.arange(819))
    assert "BSD licence" in robot.terms
    assert "NCSA licence" in french.terms


# video


def test_arrays_as_video(tmp_path):
    frames = np.arange(5 * 4 * 7, dtype=np.uint8).reshape(5, 4, 7)
    np.savez(tmp_path / "a.npz", frames=frames, fps=12.5)
    video = datasets.load_video(tmp_path / "a.npz")
    assert (video.shape, video.fps) == ((4, 7), 12.5)
    np.testing.assert_array_equal(video.frames, frames)
    np.testing.assert_array_equal(video.t[0], np.arange(5))
    assert video.sequences().num_outputs == 28
    np.save(tmp_path / "a.npy", frames.astype(np.float32))
    small = datasets.load_video(tmp_path / "a.npy", factor=2, start=1, every=2)
    assert np.isnan(small.fps)
    np.testing.assert_array_equal(small.t[0], [1, 3])
    np.testing.assert_allclose(small.frames[0, 1, 2], frames[1, 2:4, 4:6].mean())
    assert small.shape == (2, 3)
    np.testing.assert_array_equal(video.to_frames(video.y[0][2]), frames[2])


def test_bad_video(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the video .*none.npz does not exist"):
        datasets.load_video(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", pictures=np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match=r"other.npz cannot be read as a video: it has no 'frames', only pictures"):
        datasets.load_video(tmp_path / "other.npz")
    np.save(tmp_path / "flat.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"the frames must be numbers \(T, H, W\), but got float64 of shape"):
        datasets.load_video(tmp_path / "flat.npy")
    np.save(tmp_path / "pickle.npy", np.array([SimpleNamespace()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"pickle.npy cannot be read as a video: .*allow_pickle=False"):
        datasets.load_video(tmp_path / "pickle.npy")
    np.savez(tmp_path / "cut.npz", frames=np.zeros((2, 3, 4)))
    content = (tmp_path / "cut.npz").read_bytes()
    for damaged in (content[:100], content[:60] + b"damage" + content[66:]):
        (tmp_path / "cut.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cut.npz cannot be read as a video: "):
            datasets.load_video(tmp_path / "cut.npz")
    np.save(tmp_path / "good.npy", np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match="factor must be a whole number of at least 1, but got 0"):
        datasets.load_video(tmp_path / "good.npy", factor=0)
    with pytest.raises(ValueError, match=r"no pixels remain of .*, \(2, 3, 4\), with start=2"):
        datasets.load_video(tmp_path / "good.npy", start=2)
    with pytest.raises(ValueError, match="no pixels remain of"):
        datasets.load_video(tmp_path / "good.npy", factor=5)
    for content in (b"no film", b""):
        (tmp_path / "text.mp4").write_bytes(content)
        with pytest.raises(ValueError, match=r"text.mp4 cannot be read as a video"):
            datasets.load_video(tmp_path / "text.mp4")
    video = datasets.load_video(tmp_path / "good.npy")
    with pytest.raises(ValueError, match=r"last axis of y must have 12 pixels, but the shape of y is \(5,\)"):
        video.to_frames(np.zeros(5))
    for method in (video.training, video.partial, video.truth):
        with pytest.raises(ValueError, match="this video has no split"):
            method()
    with pytest.raises(ValueError, match="name must be one of 'mouse', 'ocean', 'pendulum', 'seawave', but got 'dog'"):
        datasets.load_clip("dog")


@pytest.mark.long
@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_films(tmp_path, ending):
    imageio = pytest.importorskip("imageio.v3")
    pytest.importorskip("av")
    video = datasets.make_pendulum_video(num_frames=12, noise=0.0)
    grey = np.clip(video.frames, 0, 255).astype(np.uint8)
    path = tmp_path / f"film.{ending}"
    if ending == "gif":
        imageio.imwrite(path, grey, duration=40)
    else:
        imageio.imwrite(path, np.repeat(grey[..., None], 3, -1), plugin="pyav", codec="mpeg4", fps=25)
    back = datasets.load_video(path)
    assert back.frames.shape == grey.shape
    assert back.fps == pytest.approx(25)
    assert np.abs(back.frames - grey).mean() < 10


@pytest.mark.long
def test_a_gif_whose_frames_stand_for_unequal_times(tmp_path):
    pytest.importorskip("imageio.v3")
    pytest.importorskip("av")
    first, *rest = (Image.fromarray(np.full((4, 4), grey, dtype=np.uint8)) for grey in (10, 20, 30))
    for durations, times, fps in (([100, 300, 200], [1, 3, 2], 10.0), ([100, 250, 130], [1, 1, 1], None)):
        first.save(tmp_path / "a.GIF", format="GIF", save_all=True, append_images=rest, duration=durations)
        video = datasets.load_video(tmp_path / "a.GIF")
        np.testing.assert_array_equal(video.frames[:, 0, 0], np.repeat([10, 20, 30], times))
        assert fps is None or video.fps == pytest.approx(fps)


def test_split():
    video = datasets.make_pendulum_video(num_frames=6, height=8, width=8)
    hidden = np.arange(64) < 32
    video = dataclasses.replace(video, train=np.array([0, 2, 4, 5]), test=np.array([1, 3]), hidden=hidden)
    assert (video.training().num_frames, video.training().num_outputs) == (4, 64)
    t, partial = video.partial()
    np.testing.assert_array_equal(t, [1, 3])
    np.testing.assert_array_equal(np.isnan(partial), np.tile(hidden, (2, 1)))
    np.testing.assert_array_equal(np.where(hidden, video.truth(), partial), video.y[0][[1, 3]])


def test_clips_from_small_files(tmp_path):
    for folder, name in (("missa_qcif", "missa_qcif"), ("ocean64", "ocean64_gray")):
        (tmp_path / folder).mkdir()
        np.savez_compressed(tmp_path / folder / f"{name}.npz", frames=np.zeros((150, 144, 176), dtype=np.uint8), fps=25)
    video = datasets.load_missa(data_home=tmp_path)
    assert (len(video.train), len(video.test)) == (85, 65)
    assert video.partial()[1].shape == (65, 144 * 176)
    assert np.isnan(video.to_frames(video.partial()[1])[0, :78]).all()
    assert datasets.load_clip("ocean", data_home=tmp_path).description == "water, 150 x 144 x 176"
    np.savez(tmp_path / "missa_qcif" / "missa_qcif.npz", frames=np.zeros((3, 4, 5)))
    with pytest.raises(ValueError, match=r"frames of missa_qcif.npz must be \(150, 144, 176\), but got \(3, 4, 5\)"):
        datasets.load_missa(data_home=tmp_path)


@pytest.mark.data
def test_real_videos(data_home):
    missa = datasets.load_missa(data_home=data_home)
    assert missa.frames.shape == (150, 144, 176)
    assert (len(missa.train), len(missa.test), int(missa.hidden.sum())) == (85, 65, 78 * 176)
    np.testing.assert_array_equal(missa.train[:8], [0, 1, 2, 3, 8, 9, 10, 11])
    assert {47, 62, 77, 85, 95, 110, 117, 144, 149} <= set(missa.train)
    sizes = {"ocean": (100, 64, 64), "seawave": (250, 144, 176), "mouse": (100, 203, 198), "pendulum": (102, 88, 160)}
    rates = {"ocean": 25.0, "seawave": 25.0, "mouse": 125.0, "pendulum": 119 / 12}
    for name, shape in sizes.items():
        clip = datasets.load_clip(name, data_home=data_home)
        assert clip.frames.shape == shape
        assert clip.terms == ("MIT licence." if name == "mouse" else "No licence stated: do not redistribute.")
        assert clip.fps == pytest.approx(rates[name])
        assert 0 <= clip.frames.min() < clip.frames.max() - 50 <= 205
    film = data_home / "carphone" / "carphone_pristine.mp4"
    if not film.is_file():
        pytest.skip("real data: carphone is not there")
    pytest.importorskip("av")
    carphone = datasets.load_video(film, factor=2)
    assert carphone.frames.shape == (120, 72, 88)
    assert carphone.fps == pytest.approx(29.97, abs=0.01)


# generators


def test_pendulum():
    video = datasets.make_pendulum_video(num_frames=50, height=24, width=40, period=20, noise=0.0, seed=2)
    assert video.frames.shape == (50, 24, 40)
    np.testing.assert_allclose(video.frames[:30], video.frames[20:], atol=1e-8)  # periodic
    assert 29 < video.frames.min() < 35
    assert 200 < video.frames.max() < 231
    # the bob, the brightest mass, is where the angle says
    columns = (video.frames - 30).sum(1) @ (np.arange(40) + 0.5) / (video.frames - 30).sum((1, 2)) - 20
    assert np.corrcoef(columns, np.sin(np.radians(50) * video.latent[0][:, 0]))[0, 1] > 0.999
    same, other = (datasets.make_pendulum_video(num_frames=3, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(same.y[0], datasets.make_pendulum_video(num_frames=3).y[0])
    assert not np.allclose(same.y[0], other.y[0])
    with pytest.raises(ValueError, match="height must be a whole number of at least 8, but got 4"):
        datasets.make_pendulum_video(num_frames=5, height=4)
    with pytest.raises(ValueError, match=r"swing must be in \(0, 90\], but got 120"):
        datasets.make_pendulum_video(swing=120)


def test_sensors():
    sensors = datasets.make_sensors()
    y, dates = sensors.y[0], sensors.dates[0]
    assert y.shape == (504, 24)
    assert sensors.latent[0].shape == (504, 4)
    np.testing.assert_array_equal(np.diff(dates), np.timedelta64(1, "h"))
    np.testing.assert_array_equal(sensors.t[0], np.arange(504))
    assert sensors.columns[-1] == "wind 6"
    np.testing.assert_array_equal(y, datasets.make_sensors().y[0])
    assert not np.allclose(y, datasets.make_sensors(seed=1).y[0], equal_nan=True)
    # drop-outs: a day of all sensors, two days of some, and single entries
    gone = np.isnan(y)
    day = gone.all(1)
    assert day.sum() == 24
    assert day[day.argmax() : day.argmax() + 24].all()
    others = gone & ~day[:, None]
    assert (others.sum(0)[::5] >= 24).all()
    assert 0.01 < np.delete(others, np.arange(0, 24, 5), 1).mean() < 0.03


def test_sensors_without_noise_and_dropouts():
    noisy, clean = datasets.make_sensors(dropouts=False), datasets.make_sensors(noise=0.0, dropouts=False)
    assert np.isfinite(clean.y[0]).all()
    names = np.array([name.split()[0] for name in clean.columns])
    light, humidity = (clean.y[0][:, names == kind] for kind in ("light", "humidity"))
    assert (light.reshape(21, 24, -1)[:, :4] == 0).all()  # at night
    assert (light.reshape(21, 24, -1)[:, 12] > 10).all()  # at noon
    assert humidity.max() < 100
    assert np.nanmax(noisy.y[0][:, names == "humidity"]) <= 100
    assert noisy.y[0][:, names != "temperature"].min() >= 0
    error = (noisy.y[0] - clean.y[0]).std(0) / clean.y[0].std(0)
    assert 0.01 < error.min() < error.max() < 0.6
    assert datasets.make_sensors(num_days=7, num_sensors=5).y[0].shape == (168, 5)
    assert datasets.make_sensors(num_days=7, num_sensors=5).columns[-1] == "temperature 2"
    seen = np.isfinite(datasets.make_sensors(dropouts=True).y[0])
    np.testing.assert_array_equal(noisy.y[0][seen], datasets.make_sensors().y[0][seen])


@pytest.mark.parametrize("options", [{"num_days": 6}, {"num_sensors": 0}, {"noise": -1.0}, {"noise": float("nan")}])
def test_sensors_are_refused(options):
    (name,) = options
    with pytest.raises(
        ValueError, match=f"^{name} must be (a whole number of at least|finite and 0 or more).* but got"
    ):
        datasets.make_sensors(**options)


def test_sequences_of_one_frame():
    clean, noisy = (datasets.make_sequences(1, 2, (1, 1), noise=noise).y[0] for noise in (0.0, 0.1))
    assert clean.shape == (1, 2)
    assert (np.abs(noisy - clean) > 0).all()
    assert (np.abs(noisy - clean) < 0.5).all()  # five standard deviations
    assert np.concatenate(datasets.make_sequences(2, 1, (1, 1), noise=0.0).y).std() == pytest.approx(1.0)


def test_pins_can_be_used():
    """A trial with an address is of use only where its skeleton has one."""
    for name, source in cache.SOURCES.items():
        if name.endswith(".amc") and source.url is not None:
            assert cache.SOURCES[f"{name.split('_')[0]}.asf"].url is not None


def test_dataset_is_frozen():
    data = datasets.make_sequences()
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.t = []
    assert isinstance(data, base.Dataset)
    assert data.terms == "Generated."


def test_a_data_set_is_shown_in_a_line():
    one = datasets.make_sequences(num_sequences=1, num_outputs=1, length=(9, 9))
    assert repr(one) == f"Dataset(1 sequence, 9 frames, 1 output: {one.description})"
    assert repr(datasets.make_pendulum_video(num_frames=8)).startswith("Video(1 sequence, 8 frames, ")
