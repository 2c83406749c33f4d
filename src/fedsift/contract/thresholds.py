"""Where a label's P(wrong) has consequences; imports nothing, so that the commands' help starts at once."""

FLAG = 0.5
"""P(wrong) above which a label of a site with evidence is flagged."""
APPLY = 0.6
"""P(wrong) above which the proposal replaces a flagged label by default: on CIFAR-10N with mixed noise the lowest value
tried that mends four labels for each that it harms, and the highest that mends two in five (seeds 100 to 103, other
than those reported)."""
