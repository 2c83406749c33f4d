"""Thresholds on P(wrong) that have consequences; imports nothing, so that `--help` starts at once."""

from __future__ import annotations

FLAG = 0.5
"""P(wrong) above which a label of a site with evidence is flagged."""
APPLY = 0.67
"""P(wrong) above which the proposal replaces a flagged label by default: on CIFAR-10N with mixed noise, seeds 100 and
101, it mends 42 % of the wrong labels at equal sites, 4.1 to 5.0 for each that it harms. Values from 0.66 to 0.70 would
do about as well."""


BLIND = 0.2
"""Share of the queue that is shown without a proposal, because people tend to accept one."""
WITHIN = 0.05
"""Half the width of an interval that a plan aims at."""
