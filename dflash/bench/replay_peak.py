"""`python -m dflash.bench.replay_peak FILE POLICY`: replay a file, print the most memory held in bytes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dflash.draftfile.reader import open_draft_file
from dflash.policy.registry import parse_policy
from dflash.replay.run import replay


def main(path: str, policy: str) -> None:
    """Replay one file under one policy."""
    replay([open_draft_file(Path(path))], [parse_policy(policy)])
    # getrusage also counts what the process that started this one held
    held = re.search(
        r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE
    )
    if held is None:
        raise RuntimeError("the kernel does not tell the peak of resident memory")
    sys.stdout.write(f"{int(held[1]) * 1024}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
