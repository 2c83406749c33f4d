"""`python -m tests.cli.cards`: measure the networks anew and write what `fedsift models` lists."""

from __future__ import annotations

from fedsift.cli.listings import CARDS, known_text

if __name__ == "__main__":
    CARDS.write_text(known_text(), "utf-8")
