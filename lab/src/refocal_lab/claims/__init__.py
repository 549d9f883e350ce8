"""The papers' claims, each with a check that decides it. `refocal-lab claims` runs the checks."""

from refocal_lab.claims.checking import all_claims, check, find
from refocal_lab.claims.claim import CheckMethod, Claim, ClaimRecord, ClaimVerdict, Outcome, settle

__all__ = ["CheckMethod", "Claim", "ClaimRecord", "ClaimVerdict", "Outcome", "all_claims", "check", "find", "settle"]
