"""Tests of the Flower engine; without Flower they are skipped by name."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="the Flower engine is not installed: pip install 'fedsift[deploy]'")
