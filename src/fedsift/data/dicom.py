"""Reads DICOM files as greyscale pictures, and nothing else of their headers.

Stored values become modality values by rescale slope and intercept (or the modality LUT), those become grey by the
VOI LUT or the window (PS3.3 C.11.1 and C.11.2), and MONOCHROME1 is turned round, so that high is bright everywhere.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedsift.core.errors import ConfigError, DataError
from fedsift.data.input_files import MAX_PIXELS, Picture, is_dicom, too_large

DEFLATED = b"1.2.840.10008.1.2.1.99"
HEAD = 4096
"""Bytes in which a file names its transfer syntax."""
GREY = ("MONOCHROME1", "MONOCHROME2")


def pydicom() -> Any:
    """The library, or a line that says how to get it."""
    try:
        import pydicom as library
    except ImportError:
        raise ConfigError("DICOM files need pydicom: pip install 'fedsift[dicom]'") from None
    return library


def decode_dicom(data: bytes) -> Image.Image:
    """One single-frame DICOM file as a grey or RGB picture of 8 bits."""
    library = pydicom()
    if DEFLATED in data[:HEAD]:
        raise DataError("a deflated DICOM file, whose size is not known before it is unpacked: save it as another kind")
    try:
        header = library.dcmread(io.BytesIO(data), force=False)
    except library.errors.InvalidDicomError:
        raise DataError("not a DICOM file") from None
    if "PixelData" not in header:
        raise DataError("a DICOM file without a picture")
    frames = int(header.get("NumberOfFrames") or 1)
    if frames > 1:
        raise DataError(f"{frames} frames in one DICOM file: save each as a file of its own")
    if int(header.get("SamplesPerPixel") or 1) > len("RGBA"):
        raise DataError(f"a DICOM picture of {header.SamplesPerPixel} channels")
    if int(header.Rows) * int(header.Columns) > MAX_PIXELS:
        raise DataError(too_large(int(header.Columns), int(header.Rows)))
    kind = str(header.get("PhotometricInterpretation", ""))
    pixels: NDArray[Any] = header.pixel_array
    if kind in GREY:
        return Image.fromarray(grey_of(pixels, header, turned=kind == "MONOCHROME1"))
    return Image.fromarray(_colour(pixels, header, kind))


def grey_of(stored: NDArray[Any], header: Any, *, turned: bool) -> NDArray[np.uint8]:
    """stored: `[height, width]` values of the file; grey in 0..255 through modality, window and polarity."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    values = np.asarray(apply_modality_lut(stored, header), np.float64)
    windowed = ("WindowCenter" in header and "WindowWidth" in header) or "VOILUTSequence" in header
    if "VOILUTSequence" in header:
        values = np.asarray(apply_voi_lut(values.astype(np.int64), header, prefer_lut=True), np.float64)
        low, high = 0.0, 2.0 ** int(header.VOILUTSequence[0].LUTDescriptor[2]) - 1
    elif windowed:
        return _polarity(window(values, header), turned)
    else:
        low, high = float(values.min()), float(values.max())
    share = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return _polarity(share, turned)


def window(values: NDArray[np.float64], header: Any) -> NDArray[np.float64]:
    """The first window of the file on modality values, as shares of the output range.

    Linear (C.11.2.1.2): 0 up to c - 0.5 - (w - 1)/2, 1 above c - 0.5 + (w - 1)/2, and between them
    (x - (c - 0.5))/(w - 1) + 0.5. LINEAR_EXACT: (x - c)/w + 0.5, cut to 0..1. SIGMOID: 1/(1 + exp(-4 (x - c)/w)).
    """
    centre, width = _first(header.WindowCenter), _first(header.WindowWidth)
    function = str(header.get("VOILUTFunction") or "LINEAR").upper()
    if width <= 0 or (function == "LINEAR" and width < 1):
        raise DataError(f"a DICOM window of width {width:g}")
    if function == "SIGMOID":
        return np.asarray(1.0 / (1.0 + np.exp(np.clip(-4.0 * (values - centre) / width, -500, 500))))
    if function == "LINEAR_EXACT":
        return np.asarray(np.clip((values - centre) / width + 0.5, 0.0, 1.0))
    if width == 1:
        return (values > centre - 0.5).astype(np.float64)
    return np.asarray(np.clip((values - (centre - 0.5)) / (width - 1.0) + 0.5, 0.0, 1.0))


def _polarity(share: NDArray[np.float64], turned: bool) -> NDArray[np.uint8]:
    return np.round(255.0 * (1.0 - share if turned else share)).astype(np.uint8)


def _colour(pixels: NDArray[Any], header: Any, kind: str) -> NDArray[np.uint8]:
    if kind == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        pixels = np.asarray(apply_color_lut(pixels, header))
        pixels = (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels
    elif kind != "RGB" and not kind.startswith("YBR"):  # the library hands YBR over as RGB
        raise DataError(f"a DICOM picture of kind '{kind}' is not supported")
    if pixels.dtype != np.uint8:
        raise DataError(f"a colour DICOM picture of {pixels.dtype}: only 8 bits are supported")
    return np.asarray(pixels[..., :3])


def _first(value: Any) -> float:
    """The first of one or several values."""
    return float(value[0] if isinstance(value, Sequence) and not isinstance(value, str) else value)


def header_values(pictures: Sequence[Picture], keyword: str) -> dict[str, Picture]:
    """Pictures by the value of one DICOM attribute that a person named; no other attribute is looked at."""
    library = pydicom()
    if library.datadict.tag_for_keyword(keyword) is None:
        raise ConfigError(f"data.dicom_id = '{keyword}': DICOM has no such attribute; e.g. SOPInstanceUID")

    def value_of(picture: Picture) -> str:
        if not is_dicom(picture):
            return ""
        try:
            header = library.dcmread(io.BytesIO(picture.read()), specific_tags=[keyword], stop_before_pixels=True)
        except Exception:  # a broken file is reported when it is decoded
            return ""
        return str(header.get(keyword) or "").strip()

    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(value_of, pictures))
    found: dict[str, Picture] = {}
    for value, picture in zip(values, pictures):
        if value in found:
            raise DataError(
                f"'{picture.name}' and '{found[value].name}' have one {keyword}: choose an attribute that is "
                "different for every picture, e.g. SOPInstanceUID"
            )
        if value:
            found[value] = picture
    return found
