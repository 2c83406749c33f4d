"""DICOM as pictures: window, rescale and polarity by the standard's formulas, and nothing else of the header."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.data import dicom
from fedsift.data.images import PictureForm, decode
from fedsift.data.sources.folder import FolderSource
from tests.data.pictures_on_disk import table

pydicom = pytest.importorskip("pydicom")

RAMP = np.arange(64, dtype=np.uint16).reshape(8, 8) * 64  # 0 .. 4032


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))


def dicom_bytes(pixels: NDArray[Any], **attributes: Any) -> bytes:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    meta.MediaStorageSOPInstanceUID = generate_uid()
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    file.PatientName = "Doe^Jane"
    file.PatientID = "secret-17"
    file.Rows, file.Columns = pixels.shape[:2]
    file.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    file.BitsAllocated = file.BitsStored = 8 * pixels.dtype.itemsize
    file.HighBit = file.BitsStored - 1
    file.PixelRepresentation = 0
    file.PhotometricInterpretation = "MONOCHROME2"
    file.PixelData = pixels.tobytes()
    for name, value in attributes.items():
        setattr(file, name, value)
    out = io.BytesIO()
    file.save_as(out, enforce_file_format=True)
    return out.getvalue()


def grey(data: bytes) -> NDArray[np.uint8]:
    return decode(data, PictureForm(8, 1))[0]


def test_without_a_window_the_whole_range_is_used() -> None:
    assert np.array_equal(grey(dicom_bytes(RAMP)), np.round(255 * (RAMP / RAMP.max())))
    assert grey(dicom_bytes(np.full((8, 8), 7, np.uint16))).max() == 0


def test_rescale_then_window_by_the_standards_formula() -> None:
    """C.11.2.1.2: y = (x - (c - 0.5))/(w - 1) + 0.5 on modality values x = 2 v - 1024, cut to 0..1."""
    data = dicom_bytes(RAMP, RescaleSlope=2, RescaleIntercept=-1024, WindowCenter=[40, 400], WindowWidth=[400, 80])
    x = 2.0 * RAMP - 1024
    expected = np.round(255 * np.clip((x - 39.5) / 399 + 0.5, 0, 1))
    assert np.array_equal(grey(data), expected)
    assert {0, 255} <= set(expected.ravel())


@pytest.mark.parametrize("function", ["LINEAR_EXACT", "SIGMOID"])
def test_other_window_functions(function: str) -> None:
    data = dicom_bytes(RAMP, WindowCenter=2000, WindowWidth=1000, VOILUTFunction=function)
    x = (RAMP - 2000.0) / 1000
    share = np.clip(x + 0.5, 0, 1) if function == "LINEAR_EXACT" else 1 / (1 + np.exp(-4 * x))
    assert np.array_equal(grey(data), np.round(255 * share))


def test_a_voi_table_comes_before_the_window() -> None:
    from pydicom.dataset import Dataset

    lut = Dataset()
    lut.LUTDescriptor = [4, 0, 16]
    lut.LUTData = np.array([0, 65535, 0, 65535], "<u2").tobytes()
    data = dicom_bytes(np.tile(np.arange(4, dtype=np.uint16), 16).reshape(8, 8), VOILUTSequence=[lut], WindowCenter=1,
                       WindowWidth=2)  # fmt: skip
    assert grey(data)[0].tolist() == [0, 255, 0, 255, 0, 255, 0, 255]


def test_monochrome1_is_turned_round() -> None:
    plain, turned = (
        grey(dicom_bytes(RAMP, PhotometricInterpretation=f"MONOCHROME{k}", WindowCenter=2000, WindowWidth=1000))
        for k in (2, 1)
    )
    assert np.abs(plain.astype(int) + turned - 255).max() <= 1
    assert turned[0, 0] == 255


def test_colour() -> None:
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 200
    data = dicom_bytes(red, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    assert decode(data, PictureForm(8))[:, 0, 0].tolist() == [200, 0, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"NumberOfFrames": 3}, "3 frames in one DICOM file: save each as a file of its own"),
        ({"WindowCenter": 1, "WindowWidth": 0}, "window of width 0"),
        ({"PhotometricInterpretation": "HSV"}, "of kind 'HSV' is not supported"),
        ({"Rows": 60_000, "Columns": 60_000}, "60000 x 60000 pixels"),
    ],
)
def test_what_is_not_one_picture_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        grey(dicom_bytes(RAMP, **changes))


def clinic(root: Path) -> Path:
    root.mkdir()
    for k in range(6):
        data = dicom_bytes(RAMP + np.uint16(k), AccessionNumber=f"A{k}")
        (root / (f"p{k}.dcm" if k % 2 else f"1.2.840.{k}")).write_bytes(data)
    return root


def test_a_folder_of_dicom_files_by_a_named_attribute(tmp_path: Path) -> None:
    root = clinic(tmp_path / "own")
    table(root / "labels.csv", [{"id": f"A{k}", "label": "ab"[k % 2]} for k in range(6)])
    found = FolderSource(path=root, size=8, channels=1, dicom_id="AccessionNumber").load()
    assert found.ids is not None
    assert sorted(found.ids) == [f"A{k}" for k in range(6)]
    everything = repr(found) + "".join(str(file.read_bytes()) for file in (tmp_path / "cache").rglob("*.json"))
    assert "Doe" not in everything
    assert "secret-17" not in everything
    with pytest.raises(ConfigError, match="no such attribute"):
        FolderSource(path=root, dicom_id="Acession").load()
    with pytest.raises(DataError, match="have one PatientID"):
        FolderSource(path=root, dicom_id="PatientID").load()


def test_without_the_library_there_is_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = clinic(tmp_path / "own")
    table(root / "labels.csv", [{"path": "p1.dcm", "label": "a"}, {"path": "p3.dcm", "label": "b"}])
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedsift\[dicom\]'"):
        FolderSource(path=root, size=8).load()
    with pytest.raises(ConfigError, match="pydicom"):
        dicom.pydicom()
