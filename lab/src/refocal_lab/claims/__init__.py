"""The papers' claims, each with a check that decides it: `refocal-lab claims` runs them (needs the extra `claims`)."""

from refocal_lab.claims.claim import Claim, Method, Outcome, Record, Verdict, settle
from refocal_lab.claims.run import all_claims, check, find

__all__ = ["Claim", "Method", "Outcome", "Record", "Verdict", "all_claims", "check", "find", "settle"]
