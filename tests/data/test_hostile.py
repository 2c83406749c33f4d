"""Own data as careless or hostile people make them: a line that names the fault, never a traceback."""

from __future__ import annotations

import io
import os
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, UnidentifiedImageError

from fedsift.core.errors import ConfigError, DataError
from fedsift.data import input_files
from fedsift.data.csv_tables import read_table
from fedsift.data.dataset import Dataset
from fedsift.data.doctor import examine, kind_at
from fedsift.data.images import PictureForm, decode, load_pictures
from fedsift.data.input_files import find_pictures, inside_reference, read_array, read_arrays
from fedsift.data.sources.base import sources
from fedsift.data.sources.folder import FolderSource
from fedsift.data.sources.npz import Npz
from tests.data.pictures_on_disk import labelled_folder, picture, table


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))


def folder(root: Path, **options: object) -> Dataset:
    return FolderSource(path=root, size=8, **options).load()  # type: ignore[arg-type]


def codes(root: Path, **options: object) -> dict[str, str]:
    report = examine(FolderSource(path=root, size=8, **options))  # type: ignore[arg-type]
    return {finding.code: finding.text for finding in report.findings}


# Tables


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"id,label\n", "has a header and no row"),
        (b"id;label\np000;a\n", 'looks separated by semicolons, not commas: set delimiter = ";"'),
        (b"id\tlabel\np000\ta\n", r"looks separated by tabs, not commas: set delimiter = \"\\t\""),
        ("id,label\np000,bösartig\n".encode("cp1252"), 'it looks like cp1252: set encoding = "cp1252"'),
        ("id,label\np000,a\n".encode("utf-16"), 'it looks like utf-16: set encoding = "utf-16"'),
        ("id,label\np000,\u00fc\n".encode("utf-16-le"), "utf-16"),
        (b"PK\x03\x04rest", "it looks like a spreadsheet"),
        (b"id,label,label\np000,a,b\n", "two columns called 'label'"),
        (b"id,label\np000\n", "line 2: 1 values for 2 columns"),
        (b"id,label\x00\np000,a\n", "zero bytes"),
    ],
)
def test_tables_that_are_no_csv_in_utf8(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "labels.csv").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_table(tmp_path / "labels.csv")


def test_other_delimiters_and_encodings_when_named(tmp_path: Path) -> None:
    root = labelled_folder(tmp_path / "own", 4, classes=("gut", "bösartig"))
    text = (root / "labels.csv").read_text("utf-8").replace(",", ";")
    (root / "labels.csv").write_bytes(text.encode("cp1252"))
    assert folder(root, delimiter=";", encoding="cp1252").classes == ("bösartig", "gut")
    with pytest.raises(ConfigError, match="no such encoding"):
        folder(root, encoding="utf-99")
    with pytest.raises(ConfigError, match="one character"):
        folder(root, delimiter=";;")


def test_samples_without_a_label_are_refused_or_dropped(tmp_path: Path) -> None:
    root = labelled_folder(tmp_path, 6)
    rows = [line.split(",") for line in (root / "labels.csv").read_text().splitlines()]
    rows[3][2] = ""
    (root / "labels.csv").write_text("\n".join(",".join(row) for row in rows))
    with pytest.raises(DataError, match=r"no label at all \(1 sample\), first at sample 'p002'"):
        folder(root)
    kept = folder(root, unknown="drop")
    assert (kept.classes, len(kept.train)) == (("benign", "malignant"), 5)
    assert "1 sample without a label" in codes(root)["unknown-label"]


def test_ids_that_stand_for_two_samples_are_reported(tmp_path: Path) -> None:
    root = labelled_folder(tmp_path, 6)
    text = (root / "labels.csv").read_text()
    (root / "labels.csv").write_text(text.replace("p001,", "p000,", 1))
    assert "1 id for more than one sample" in codes(root)["repeated-id"]
    assert any("'p000' for 2" in note for note in folder(root).notes)


def test_words_for_no_label_are_reported(tmp_path: Path) -> None:
    root = labelled_folder(tmp_path, 9, classes=("benign", "malignant", "NA"))
    assert "class 'NA' (3 samples) looks like a missing value" in codes(root)["missing-value"]


# Where pictures lie


@pytest.mark.parametrize(
    ("reference", "inside"),
    [
        ("a/b.png", "a/b.png"),
        ("./a/b.png", "a/b.png"),
        ("a/../b.png", "b.png"),
        ("../b.png", None),
        ("a/../../b.png", None),
        ("/etc/passwd", None),
        ("/data/own/a/b.png", "a/b.png"),
        ("/data/own/../b.png", None),
        ("C:\\data\\b.png", None),
        ("a\\b.png", "a/b.png"),
    ],
)
def test_references_stay_inside_the_folder(reference: str, inside: str | None) -> None:
    assert inside_reference(reference, Path("/data/own")) == inside


@pytest.mark.parametrize("reference", ["../secret.png", "{outside}/secret.png"])
def test_a_table_cannot_reach_out_of_its_folder(tmp_path: Path, reference: str) -> None:
    root = labelled_folder(tmp_path / "own", 4)
    picture(tmp_path / "secret.png", 99)
    picture(root / "secret.png", 98)  # a namesake inside is not taken for it
    rows = [
        {"path": "pictures/p000.png", "label": "a"},
        {"path": reference.format(outside=tmp_path), "label": "b"},
    ]
    table(root / "labels.csv", rows)
    with pytest.raises(DataError, match="leads out of"):
        folder(root)


def test_a_name_in_two_folders_is_not_guessed(tmp_path: Path) -> None:
    picture(tmp_path / "a/p.png", 1)
    picture(tmp_path / "b/p.png", 2)
    table(tmp_path / "labels.csv", [{"id": "p", "label": "x"}, {"id": "a/p.png", "label": "y"}])
    with pytest.raises(DataError, match=r"'p' may mean 'a/p.png' or 'b/p.png'"):
        folder(tmp_path)


def test_links(tmp_path: Path) -> None:
    """A link to a picture in the folder is that picture; others are broken; a circle of folders is not walked."""
    root = labelled_folder(tmp_path / "own", 4)
    picture(tmp_path / "elsewhere.png", 50)
    (root / "pictures/link.png").symlink_to(root / "pictures/p000.png")
    (root / "pictures/out.png").symlink_to(tmp_path / "elsewhere.png")
    (root / "pictures/zero.png").symlink_to("/dev/zero")
    (root / "pictures/gone.png").symlink_to(tmp_path / "nowhere.png")
    (root / "circle").symlink_to(root, target_is_directory=True)
    decoded = load_pictures(find_pictures(root), PictureForm(8))
    assert len(decoded.kept) == 5
    out = "a link that leads out of the folder: copy the file into it"
    assert decoded.broken == (
        ("pictures/gone.png", "a link that leads nowhere"), ("pictures/out.png", out), ("pictures/zero.png", out),
    )  # fmt: skip


def test_fifos_devices_and_sockets_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = labelled_folder(tmp_path / "own", 4)
    os.mkfifo(root / "pictures/fifo.png")
    os.mkfifo(root / "pictures/fifo.zip")
    os.mkfifo(root / "pictures/fifo")
    (root / "pictures/fifo.zip").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(root / "pictures")  # a socket's path is short
        listening.bind("socket.png")
    decoded = load_pictures(find_pictures(root), PictureForm(8))
    assert len(decoded.kept) == 4
    assert dict(decoded.broken) == {
        "pictures/fifo.png": "a fifo, not a file", "pictures/socket.png": "a socket, not a file",
    }  # fmt: skip
    os.mkfifo(root / "more.zip")
    with pytest.raises(DataError, match=r"more.zip cannot be read as a zip: a fifo, not a file"):
        find_pictures(root)
    os.mkfifo(tmp_path / "table.csv")
    with pytest.raises(DataError, match=r"table.csv cannot be read as a table: a fifo, not a file"):
        read_table(tmp_path / "table.csv")
    with pytest.raises(DataError, match="cannot be read as a table: a device, not a file"):
        read_table(Path("/dev/zero"))
    with pytest.raises(DataError, match="a device, not a file"):
        Npz(path=Path("/dev/zero")).load()


def test_a_page_of_postscript_called_png_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    root = labelled_folder(tmp_path / "own", 4)
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (root / "pictures/p000.png").write_bytes(page)
    decoded = load_pictures(find_pictures(root), PictureForm(8))
    assert decoded.broken == (("pictures/p000.png", "not a picture"),)
    assert not ran.exists()


def test_a_jpeg_that_takes_minutes_is_not_decoded() -> None:
    """Scans of a progressive one are repeated: 3 kB more cost as much as another picture."""
    file = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    assert decode(whole, PictureForm(8)).shape == (3, 8, 8)
    last = whole.rindex(b"\xff\xda")
    slow = whole[:-2] + whole[last:-2] * 200 + whole[-2:]
    with pytest.raises(DataError, match=r"a JPEG of 2\d\d scans, 100 are decoded"):
        decode(slow, PictureForm(8))


@pytest.mark.parametrize("kind", ["PPM", "TGA", "ICO", "PCX", "JPEG2000", "SGI"])
def test_formats_that_are_not_listed_are_not_decoded(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, kind)
    with pytest.raises(UnidentifiedImageError):
        decode(file.getvalue(), PictureForm(8))


def header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_arrays_that_declare_more_than_they_have_are_refused_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "load", lambda *given, **options: pytest.fail("memory would be taken here"))
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        archive.writestr("images.npy", header((10**6, 3, 1000, 1000)) + bytes(100))
    with pytest.raises(DataError, match=r"own.npz cannot be read as .npz: 'images' declares 3.0 TB and has 100 B"):
        Npz(path=tmp_path / "own.npz").load()
    (tmp_path / "soft.npy").write_bytes(header((10**9,), "<f8"))
    with pytest.raises(DataError, match=r"soft.npy cannot be read as .npy: the array declares 8.0 GB and has 0 B"):
        read_array(tmp_path / "soft.npy")


def test_arrays_that_unpack_to_what_no_machine_holds_are_refused_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "load", lambda *given, **options: pytest.fail("memory would be taken here"))
    shape = (25_000, 1, 200, 200)
    with (
        zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("images.npy", "w", force_zip64=True) as member,
    ):
        member.write(header(shape))
        for _ in range(100):
            member.write(bytes(10_000_000))
    with pytest.raises(DataError, match=r"its arrays unpack from 4.\d MB to 1.0 GB"):
        Npz(path=tmp_path / "own.npz").load()
    (tmp_path / "small").mkdir()
    np.savez_compressed(tmp_path / "small/own.npz", images=np.zeros((2000, 8, 8), np.uint8))
    monkeypatch.setattr(input_files, "memory_limit", lambda: 100_000)
    with pytest.raises(DataError, match=r"need 128.\d kB, more than half of this machine's memory"):
        read_arrays(tmp_path / "small/own.npz")


def test_names_with_line_breaks_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    root = tmp_path / "own"
    for label in ("one", "two"):
        picture(root / label / "plain.png", 1)
        picture(root / label / "with\nbreak.png", 2)
    strange = os.fsencode(root) + b"/two/\xff\xfe.png"
    (root / "two/strange.png").write_bytes((root / "two/plain.png").read_bytes())
    os.rename(root / "two/strange.png", strange)
    found = folder(root)
    assert len(found.train) == 5
    assert found.ids is not None
    assert "two/\\udcff\\udcfe.png" in found.ids.tolist()
    assert "\n".join(map(str, found.ids)).encode("utf-8")
    report = examine(FolderSource(path=root, size=8))
    assert report.train == 5


def test_a_damaged_zip_and_a_folder_that_is_a_table(tmp_path: Path) -> None:
    root = labelled_folder(tmp_path / "own", 4)
    (root / "more.zip").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match=r"more.zip cannot be read as a zip"):
        folder(root)
    with pytest.raises(DataError, match="is a table of pictures: name their folder"):
        kind_at(root / "labels.csv")
    with pytest.raises(DataError, match="there is no"):
        FolderSource(path=tmp_path / "nothing").load()


def test_zip_members_never_leave_the_zip(tmp_path: Path) -> None:
    picture(tmp_path / "p.png", 1)
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as archive:
        for label in ("a", "b"):
            archive.write(tmp_path / "p.png", f"../{label}/p.png")
    (tmp_path / "p.png").unlink()
    before = sorted(tmp_path.rglob("*.png"))
    assert len(find_pictures(tmp_path / "own.zip")) == 2
    load_pictures(find_pictures(tmp_path / "own.zip"), PictureForm(8))
    assert sorted(tmp_path.rglob("*.png")) == before


# Pixels


def test_a_picture_that_would_fill_the_memory_is_left_out(tmp_path: Path) -> None:
    root = labelled_folder(tmp_path, 4)
    Image.new("1", (12_000, 12_000)).save(root / "pictures/p000.png")
    kept = folder(root)
    assert len(kept.train) == 3
    assert any("12000 x 12000 pixels are more than 100000000" in note for note in kept.notes)


def test_16_bits_with_a_low_range(tmp_path: Path) -> None:
    root = labelled_folder(tmp_path, 4)
    values = np.linspace(0, 4000, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(values).save(root / "pictures/p000.png")
    assert "1 16-bit picture almost black" in codes(root)["dark"]
    assert any("set bits = 12" in note for note in folder(root).notes)
    assert "dark" not in codes(root, bits=12)
    data = (root / "pictures/p000.png").read_bytes()
    assert decode(data, PictureForm(8, 1)).max() == 4000 // 256
    assert np.array_equal(decode(data, PictureForm(8, 1, bits=12))[0], values // 16)


def test_dark_16_bit_pictures_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """Values below 256 of 65,536 all become 0: five different pictures at two sites would look like one."""
    root = labelled_folder(tmp_path, 8, site=lambda k: "ab"[k % 2])
    for k in range(5):
        values = np.random.default_rng(k).integers(0, 256, (8, 8)).astype(np.uint16)
        Image.fromarray(values).save(root / f"pictures/p{k:03d}.png")
    found = codes(root, channels=1)
    assert "5 16-bit pictures almost black" in found["dark"]
    assert not {"duplicate", "duplicate-across-sites", "conflicting-labels"} & found.keys()
    for k in (5, 6):
        Image.new("L", (8, 8), 200).save(root / f"pictures/p{k:03d}.png")
    assert {"duplicate-across-sites", "conflicting-labels"} <= codes(root, channels=1).keys()


# Arrays


def save(path: Path, **arrays: object) -> Path:
    good = {"images": np.zeros((6, 4, 4), np.uint8), "labels": np.arange(6) % 2}
    np.savez(path, **{**good, **arrays})  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"images": np.full((6, 4, 4), 4095, np.uint16)},
            r"are uint16 with values from 4095 to 4095: save them as uint8",
        ),
        ({"images": np.full((6, 4, 4), 200)}, r"are int64 .* values.astype\('uint8'\)"),
        (
            {"images": np.full((6, 4, 4), np.nan)},
            "hold 96 values that are NaN or infinite, first at sample 0",
        ),
        (
            {"images": np.array([[1.0], [2], [3], [np.inf], [5], [6]])},
            "1 values that are NaN or infinite, first at sample 3",
        ),
        ({"images": np.full((6, 3), 1e300)}, "beyond the range of 32-bit floats"),
        ({"images": np.array([["a"]] * 6)}, "not numbers"),
        ({"images": np.zeros((0, 4, 4), np.uint8), "labels": np.zeros(0, int)}, "array 'images' is empty"),
        ({"labels": np.array([0, 1, 0, 1, 0, np.nan])}, "labels must be whole numbers"),
        (
            {"test_images": np.zeros((2, 5, 5), np.uint8), "test_labels": np.zeros(2, int)},
            "they must be alike",
        ),
    ],
)
def test_arrays_that_no_network_should_see(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Npz(path=save(tmp_path / "a.npz", **arrays)).load()


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.npz").read_bytes()
    np.save(tmp_path / "one.npy", np.zeros(3))
    for content, words in (
        (b"", "is empty: save the arrays again"),
        (whole[: len(whole) // 2], "it is cut short or damaged"),
        (whole[:40] + b"\x00" * 60 + whole[100:], "cannot be read as .npz"),
        ((tmp_path / "one.npy").read_bytes(), "it is a single .npy array"),
        (b"hello", "cannot be read as .npz"),
    ):
        (tmp_path / "b.npz").write_bytes(content)
        with pytest.raises(DataError, match=words):
            Npz(path=tmp_path / "b.npz").load()
    np.savez(tmp_path / "c.npz", images=np.array([object()]), labels=np.zeros(1))
    with pytest.raises(DataError, match="cannot be read as .npz"):
        Npz(path=tmp_path / "c.npz").load()


def test_medmnist_files_are_read_as_they_are(tmp_path: Path) -> None:
    arrays = {}
    for side, count in (("train", 10), ("val", 4), ("test", 6)):
        arrays[f"{side}_images"] = np.full((count, 28, 28, 3), count, np.uint8)
        arrays[f"{side}_labels"] = (np.arange(count) % 3)[:, None]
    np.savez(tmp_path / "dermamnist.npz", **arrays)  # type: ignore[arg-type]
    found = Npz(path=tmp_path / "dermamnist.npz").load()
    assert (found.shape, len(found.train), len(found.test), found.n_classes) == ((3, 28, 28), 14, 6, 3)
    kept = Npz(path=tmp_path / "dermamnist.npz", validation="drop").load()
    assert (len(kept.train), len(kept.test)) == (10, 6)
    report = examine(kind_at(tmp_path / "dermamnist.npz")(path=tmp_path / "dermamnist.npz"))
    assert report.train == 14
    same = sources.get("medmnist")(dataset="dermamnist", path=tmp_path).load()  # type: ignore[call-arg]
    assert np.array_equal(same.images[same.test], found.images[found.test])


def test_float_pictures_that_are_not_normalised_are_reported(tmp_path: Path) -> None:
    images = np.full((6, 4, 4), 255.0)
    report = examine(Npz(path=save(tmp_path / "a.npz", images=images)))
    assert "float-range" in {finding.code for finding in report.findings}
