"""Studies: the TOML that a person writes, checked and completed."""

from fedsift.study.model_table import ModelTable
from fedsift.study.study import EngineTable, Study, read_toml

__all__ = ["EngineTable", "ModelTable", "Study", "read_toml"]
