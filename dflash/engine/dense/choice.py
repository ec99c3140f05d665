"""Where the dense rows of an engine are computed: as its live rounds are, so that both say the same."""

from __future__ import annotations

from dflash.drafters.base import DraftShape
from dflash.engine.dense.dense_pass import DensePass, DenseRows
from dflash.engine.dense.native import NativeDensePass
from dflash.engine.dense.rounds import DenseRounds
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.plan import round_plan
from dflash.engine.loop import Engine
from dflash.engine.settings import RecordSettings
from dflash.kernels.ancestors import MAX_NODES
from dflash.target.native import NativeTrunk


def choose_dense(engine: Engine, settings: RecordSettings, shape: DraftShape) -> DenseRows:
    """Make the dense pass of an engine.

    Args:
        engine: has everything but a dense pass.
        settings: of the recording.
        shape: of the drafts, the largest.
    """
    trunk, drafter, judge = engine.trunk, engine.drafter, engine.judge
    if not isinstance(trunk, NativeTrunk) or shape.length * shape.branches >= MAX_NODES:
        return DensePass(trunk, drafter, judge, shape)
    if not isinstance(engine, DeviceEngine):
        return NativeDensePass(trunk, drafter, judge, shape)
    plan = round_plan(settings.policy, drafter, shape, settings.store_topk, None)
    return DenseRounds(trunk, drafter, plan, trunk_is_choices=judge.trunk_is_choices)
