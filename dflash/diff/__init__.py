"""Compare two draft files section by section."""

from dflash.diff.pairing import On
from dflash.diff.report import Diff
from dflash.diff.run import diff
from dflash.diff.settings import Settings
from dflash.diff.thresholds import parse_thresholds
from dflash.diff.tolerance import Tolerances, parse_tolerances
from dflash.diff.verdict import Verdict

__all__ = ["Diff", "On", "Settings", "Tolerances", "Verdict", "diff", "parse_thresholds", "parse_tolerances"]
