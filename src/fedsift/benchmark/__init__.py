"""Benchmark tables: rows are methods, columns are scenarios, with several seeds, on any number of machines.

A table is one TOML file (`table.py`); its runs are kept by content (`store.py`), so that what exists is never computed
again; what is shown is a pure function of the kept runs (`summary.py`).
"""
