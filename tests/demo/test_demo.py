# SPDX-License-Identifier: Apache-2.0
"""The demo writes all its files, and its report opens in a browser."""

import base64
import json
import re
import shutil
import subprocess
from functools import partial

import numpy as np
import pytest
from pages import Page
from PIL import Image

from pyro_vgpds import FitResult, demo
from pyro_vgpds.cli import main
from pyro_vgpds.cli.parser import make_parser
from pyro_vgpds.datasets import Motion, Skeleton
from pyro_vgpds.demo.common import rms, write_report
from pyro_vgpds.demo.real import find_walks
from pyro_vgpds.plotting import plot_poses
from pyro_vgpds.plotting.pages import Chapter, ReportTable

pytestmark = pytest.mark.long

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PICTURES = {
    "video.gif", "video_learned.png", "video_frames.png", "video_forecast.png", "video_fan.png",
    "gait.gif", "gait_poses.png", "gait_reconstruction.png", "gait_learned.png", "gait_forecast.png", "gait_new.gif",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The demo with few steps and short data: its folder, and the skeletons and motions of its figure of poses."""
    output = tmp_path_factory.mktemp("demo") / "out"
    said: list[str] = []
    drawn = []

    def draw(skeleton, motions, *args, **options):
        drawn.append((skeleton, motions))
        return plot_poses(skeleton, motions, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYRO_VGPDS_DATA", str(output))  # without real data
        patch.setattr("pyro_vgpds.demo.gait.plot_poses", draw)
        report = demo.run(output, steps=3, small=True, say=said.append)
    assert report == output / "report.html"
    assert any("training on" in line for line in said)
    return output, drawn


@pytest.fixture(scope="module")
def folder(made):
    return made[0]


def test_files_of_the_demo(folder):
    names = {path.name for path in folder.iterdir()}
    models = {"video.safetensors", "gait.safetensors"}
    assert names == PICTURES | models | {"report.html", "gait.csv", "gait_partly.csv", "video_partly.npz"}
    for name in PICTURES:
        with Image.open(folder / name) as picture:
            assert np.asarray(picture.convert("L")).std() > 5
            assert (picture.format == "GIF") == (getattr(picture, "n_frames", 1) > 1)


def test_report_is_self_contained(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not page.open
    assert len(page.images) == len(PICTURES)
    assert all(image["alt"] for image in page.images)
    assert all(re.match(r"data:image/(png|gif);base64,", link) for link in page.links)
    without = re.sub(r"data:image/\w+;base64,[^\"]*", "", text)
    assert "://" not in without
    assert "<script" not in without
    assert not re.search(r"\bnan\b", without)


def test_commands_of_the_report_work(folder, monkeypatch, capsys):
    text = (folder / "report.html").read_text(encoding="utf-8")
    commands = re.search(r"<pre>(.*?)</pre>", text, re.DOTALL)[1].replace("&quot;", '"').splitlines()
    assert len(commands) == 7
    monkeypatch.chdir(folder)
    before = set(folder.iterdir())
    for command in commands:
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
        assert words.pop(0) == "pyro-vgpds"
        if words[0] == "fit":
            words[-1] = "2"
        assert main(words) == 0, capsys.readouterr().err
    for path in set(folder.iterdir()) - before:
        path.unlink()


def test_commands_for_an_own_file_are_those_of_the_program(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    title, commands = re.findall(r"<h2>([^<]*)</h2>\s*<p>[^<]*</p>\s*<pre>(.*?)</pre>", text, re.DOTALL)[-1]
    assert title == "Now your own csv"
    assert text.rstrip().endswith("</pre>\n</body>\n</html>")  # nothing comes after it
    for line in commands.splitlines():
        words = line.partition("#")[0].split()
        assert words.pop(0) == "pyro-vgpds"
        if "--help" not in words:
            assert make_parser().parse_args(words).command == words[0]


def recorded():
    """Something like the walks of the CMU graphics lab."""
    t = np.arange(30) / 30.0
    channels = tuple(f"{joint}.rx" for joint in ("root", "lfemur", "ltibia", "rfemur", "rtibia"))
    offsets = np.array([[0, 0, 0], [0.2, -1, 0], [0, -1, 0], [-0.2, -1, 0], [0, -1, 0]])
    skeleton = Skeleton(("root", "lfemur", "ltibia", "rfemur", "rtibia"), (-1, 0, 1, 0, 3), offsets, channels)
    y = [20.0 * np.sin(6.0 * t[:, None] + np.arange(5) + s) for s in range(3)]
    return Motion([t] * 3, y, "walks", "terms of the data", columns=list(channels), skeleton=skeleton, channels=y)


def test_recorded_walks(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "video_chapter", lambda *args: Chapter("none", []))
    monkeypatch.setattr(demo, "gait_chapter", lambda *args: Chapter("none", []))
    monkeypatch.setattr(demo, "find_walks", recorded)
    text = demo.run(tmp_path, steps=2, small=True, say=lambda text: None).read_text(encoding="utf-8")
    page = Page(text)
    assert not page.open
    assert len(page.images) == 2
    assert "A recorded walk with a missing leg" in text
    assert "terms of the data" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        "walks.gif", "walks_reconstruction.png", "walks.safetensors", "report.html",
    }  # fmt: skip


def test_no_recorded_walks(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_VGPDS_DATA", str(tmp_path))
    assert find_walks() is None


@pytest.mark.data
def test_walks_of_the_data_folder(data_home):
    assert [len(t) for t in find_walks().t] == [79, 83, 102, 91, 95]


def test_demo_command(tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(
        demo, "run", lambda output, **options: calls.append((output, options)) or output / "report.html"
    )
    assert main(["demo", "--output", str(tmp_path), "--steps", "4", "--seed", "2"]) == 0
    ((output, options),) = calls
    assert (output, options["steps"], options["seed"]) == (tmp_path, 4, 2)
    assert f"report: {tmp_path / 'report.html'}" in capsys.readouterr().err


def test_quiet_is_quiet(tmp_path, monkeypatch, capsys):
    """Also on a terminal, where training shows a progress bar."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(demo, "run", partial(demo.run, small=True))
    monkeypatch.setattr(demo, "video_chapter", lambda *args: Chapter("none", []))
    monkeypatch.setattr(demo, "gait_chapter", lambda *args: Chapter("none", []))
    monkeypatch.setattr(demo, "find_walks", recorded)
    assert main(["demo", "--output", str(tmp_path), "--steps", "2", "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_interruption_ends_the_demo(tmp_path, monkeypatch, capsys):
    """Training returns normally after Ctrl-C, but the report would state steps that were not taken."""
    monkeypatch.setattr(demo, "run", partial(demo.run, small=True))
    monkeypatch.setattr("pyro_vgpds.demo.common.fit", interrupted_fit)
    assert main(["demo", "--output", str(tmp_path), "--steps", "3"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def interrupted_fit(*args, **options):
    return FitResult(0.0, [], "interrupted", 1, "natural")


def test_only_the_leg_of_the_nearest_pose_is_drawn(made):
    ((skeleton, motions),) = made[1]
    seen = [not np.isnan(motions["nearest pose"][:, i]).any() for i in range(len(skeleton.joints))]
    bones = [skeleton.joints[end] for start, end in skeleton.bones if seen[start] and seen[end]]
    assert bones == ["left_knee", "left_ankle", "left_toe"]
    assert not np.isnan(motions["model"]).any()  # the whole figure


def test_root_mean_square():
    assert rms(np.array([1.0, 2.0]), np.array([1.0, 4.0]), np.array([False, True])) == 2.0


def test_report_escapes(tmp_path):
    chapter = Chapter("<b>", ["a & b", ReportTable(["<i>"], [["1"], ["2"]], "c > d")], ["run <x>"])
    text = write_report(tmp_path / "r.html", [chapter], 1, 0, 1.0).read_text()
    assert "&lt;b&gt;" in text
    assert "a &amp; b" in text
    assert "run &lt;x&gt;" in text
    assert not Page(text).open


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium to open the report in")
@pytest.mark.parametrize("width", [1200, 500])
def test_report_in_a_browser(folder, tmp_path, width):
    """All pictures are loaded and shown, and nothing is wider than the window, on a desktop or a phone."""
    check = """<script>addEventListener("load", () => {
        const images = [...document.images].map(i => [i.complete, i.naturalWidth, i.getBoundingClientRect().width]);
        const wide = [...document.querySelectorAll("body *")].filter(
            e => !e.closest("pre") && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
        const facts = {images, wide: wide.map(e => e.tagName), overflow: document.documentElement.scrollWidth
            - document.documentElement.clientWidth, title: document.title, width: innerWidth};
        document.body.innerHTML = "<output>" + btoa(JSON.stringify(facts)) + "</output>"; });</script></body>"""
    text = (folder / "report.html").read_text(encoding="utf-8").replace("</body>", check)
    page = tmp_path / "page.html"
    page.write_text(text, encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=10000",
        "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    found = re.search(r"<output>(.*?)</output>", done.stdout)
    assert found, done.stderr[-2000:]
    facts = json.loads(base64.b64decode(found[1]))
    assert facts["title"] == "pyro_vgpds: a demonstration"
    assert len(facts["images"]) == len(PICTURES)
    for complete, natural, shown in facts["images"]:
        assert complete
        assert natural > 50
        assert 0 < shown < facts["width"] <= width
    assert facts["wide"] == []
    assert facts["overflow"] == 0
