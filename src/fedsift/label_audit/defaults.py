"""Numbers that the commands' help names; they import nothing, so that help starts at once."""

BLIND = 0.2
"""Share of the queue that is shown without a proposal, because people tend to accept one."""
WITHIN = 0.05
"""Half the width of an interval that a plan aims at."""
