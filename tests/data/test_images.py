"""Decoding: once, in parallel, and from the cache whenever the contents are the same."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from fedsift.core.errors import ConfigError
from fedsift.data import images
from fedsift.data.images import PictureForm, decode, load_pictures
from fedsift.data.input_files import PictureFinder, find_pictures
from tests.data.pictures_on_disk import picture


@pytest.fixture
def folder(tmp_path):
    for k in range(12):
        picture(tmp_path / "pictures" / f"{k}.png", k)
    return tmp_path / "pictures"


def count_decodings(monkeypatch) -> list[str]:
    seen: list[str] = []
    real = images.why_unreadable
    monkeypatch.setattr(images, "why_unreadable", lambda p, form: (seen.append(p.name), real(p, form))[1])
    return seen


def test_a_second_start_reads_the_cache(folder, tmp_path, monkeypatch):
    seen = count_decodings(monkeypatch)
    first = load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c")
    assert len(seen) == 12
    again = load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c")
    assert len(seen) == 12
    assert np.array_equal(first.images, again.images)


def test_the_cache_goes_by_content_not_by_time_or_place(folder, tmp_path, monkeypatch):
    load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c")
    seen = count_decodings(monkeypatch)
    os.utime(folder / "3.png", (1, 1))
    load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c")
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    load_pictures(find_pictures(moved), PictureForm(8), cache=tmp_path / "c")
    assert seen == []
    picture(folder / "3.png", 99)
    changed = load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c")
    assert len(seen) == 12
    assert np.array_equal(changed.images[-1], decode((folder / "9.png").read_bytes(), PictureForm(8)))
    load_pictures(find_pictures(folder), PictureForm(9), cache=tmp_path / "c")
    assert len(seen) == 24


def test_a_stopped_decoding_leaves_no_cache(folder, tmp_path, monkeypatch):
    def stop(picture, form):
        raise KeyboardInterrupt

    monkeypatch.setattr(images, "why_unreadable", stop)
    with pytest.raises(KeyboardInterrupt):
        load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c")
    assert not list((tmp_path / "c").rglob("*.u8"))
    assert not list((tmp_path / "c").rglob("*.tmp"))
    monkeypatch.undo()
    assert len(load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c").kept) == 12


def test_writing_to_loaded_pictures_never_reaches_the_cache(folder, tmp_path):
    loaded = load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c").images
    before = loaded.copy()
    loaded[:] = 0
    assert np.array_equal(load_pictures(find_pictures(folder), PictureForm(8), cache=tmp_path / "c").images, before)


def test_every_kind_of_picture_becomes_bytes_of_one_shape(tmp_path):
    grey16 = Image.fromarray((np.arange(100, dtype=np.uint16) * 655).reshape(10, 10))
    colour = Image.fromarray(np.full((4, 8, 3), 200, np.uint8))
    for name, image in {
        "g.png": grey16,
        "p.png": colour.convert("P"),
        "a.png": colour.convert("RGBA"),
        "j.jpg": colour,
    }.items():
        image.save(tmp_path / name)
    decoded = load_pictures(find_pictures(tmp_path), PictureForm(6), cache=tmp_path / "c")
    assert decoded.images.shape == (4, 3, 6, 6)
    assert not decoded.broken
    one = decode((tmp_path / "g.png").read_bytes(), PictureForm(10, channels=1))
    assert one[0, -1, -1] == 99 * 655 // 256
    assert abs(int(decoded.images[0].mean()) - 200) <= 2


def test_crop_takes_the_central_square(tmp_path):
    pixels = np.zeros((4, 12, 3), np.uint8)
    pixels[:, 4:8] = 255
    Image.fromarray(pixels).save(tmp_path / "w.png")
    assert decode((tmp_path / "w.png").read_bytes(), PictureForm(4, fit="crop")).min() == 255
    assert decode((tmp_path / "w.png").read_bytes(), PictureForm(4)).min() == 0


def test_pictures_are_found_by_path_name_or_stem(folder):
    finder = PictureFinder(find_pictures(folder.parent))
    assert finder.find("pictures/3.png") is finder.find("3.png") is finder.find("3") is finder.find("x/3.jpg/3")
    assert finder.find("nothing") is None


def test_impossible_shapes_are_refused():
    with pytest.raises(ConfigError):
        PictureForm(0)
    with pytest.raises(ConfigError):
        PictureForm(8, channels=2)
