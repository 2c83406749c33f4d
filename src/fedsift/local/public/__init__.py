"""What a site does with public samples: show its predictions for them, and learn from those of others.

Sites agree on samples, order and augmentation without a word: all follow from the run's seed and a number.
"""

from fedsift.local.public.learning import OPTIMISER, Lesson, learn
from fedsift.local.public.samples import PublicPart, public_of, public_size
from fedsift.local.public.showing import Show
from fedsift.local.public.visit import Collaborate, Collaborated

__all__ = [
    "OPTIMISER",
    "Collaborate",
    "Collaborated",
    "Lesson",
    "PublicPart",
    "Show",
    "learn",
    "public_of",
    "public_size",
]
