"""What RHFL's two forms share: the symmetric loss of private training, and how much confidence counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsift.contract import ConfigError
from fedsift.contract.ranges import AtLeastZero
from fedsift.local.objective import CrossEntropy, Objective, as_objective
from fedsift.local.robust import LOG0, SymmetricCrossEntropy
from fedsift.signals.credibility import Mode


@dataclass(frozen=True)
class SymmetricAndConfident:
    """Switches and weights of SL (section 3.2) and CCR (section 3.3)."""

    sl: bool = field(default=True, kw_only=True)
    """Symmetric loss in private training and in CCR; off is plain cross-entropy (Tables 2 and 3)."""
    alpha: AtLeastZero = field(default=0.1, kw_only=True)
    """lambda of eq. 7: weight of the cross-entropy."""
    beta: AtLeastZero = field(default=1.0, kw_only=True)
    """Weight of the reverse cross-entropy."""
    rce_log0: float = field(default=LOG0, kw_only=True)
    """What log 0 counts as in the reverse cross-entropy: ln 1e-4; the SCE paper has -4 and -6."""
    eta: AtLeastZero = field(default=0.5, kw_only=True)
    """eta of eq. 12: how much confidence counts."""
    ccr_mode: Mode = field(default="official", kw_only=True)
    """Normaliser of eq. 12: as printed, by absolute values ("abs"), or by falling losses alone ("clip")."""

    def __post_init__(self) -> None:
        if not self.rce_log0 < 0:
            raise ConfigError(f"method.rce_log0 = {self.rce_log0}: a logarithm of 0 is negative, e.g. -9.21")

    def private_loss(self) -> Objective:
        """L_sl = alpha L_ce + beta L_rce (eq. 7), or plain cross-entropy."""
        if not self.sl:
            return as_objective(CrossEntropy())
        return as_objective(SymmetricCrossEntropy(self.alpha, self.beta, self.rce_log0))
