"""From the options of `dflash record` to settings and a loaded target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from dflash.cli.options import read_pairs
from dflash.cli.output import stages
from dflash.drafters import shipped
from dflash.drafters.build import Part, default_length, parse_drafter
from dflash.drafters.fan import Fan
from dflash.engine.features import FeatureMode
from dflash.engine.memory import WeightsTooLarge
from dflash.engine.prompts.chat import Defaults
from dflash.engine.settings import RecordSettings, kind_of
from dflash.engine.shard import Shard
from dflash.errors import UsageError
from dflash.kernels.feature_codes import Encoding
from dflash.policy.context import Proposal as ProposalKind
from dflash.policy.context import RuleContext
from dflash.policy.registry import Policy, parse_policy
from dflash.policy.temperature import TEMPERATURES, is_temperature
from dflash.replay.cost import load_cost
from dflash.target.load import Target, load_target
from dflash.target.native import proven
from dflash.target.native_layers import Way
from dflash.target.sampling import Sampling

BRANCHES = 2


def record_settings(options: Mapping[str, Any]) -> RecordSettings:
    """What the options fix; everything that can be refused without a model is refused here.

    Raises:
        UsageError: Options contradict each other, or a value makes no sense.
    """
    pairs = read_pairs(options["pairs"])
    _refuse_conflicts(options)
    defaults = Defaults(
        sampling=Sampling(options["temperature"], options["top_k"], options["top_p"]),
        seed=options["seed"],
        max_new_tokens=options["max_new_tokens"],
        stop=tuple(_text("--stop", stop) for stop in options["stop"]),
        system=None if options["system"] is None else _text("--system", options["system"]),
        raw=options["raw"],
    )
    chosen = options["drafter"] or _usual_drafter(options["target"])
    parts = parse_drafter(chosen)
    drafter = "none" if options["length"] == 0 else chosen
    proposal = options["proposal"]
    fan = None if options["tree"] is None else Fan.parse(options["tree"])
    policy = parse_policy(options["policy"], pairs)
    shard = None if options["shard"] is None else Shard.parse(options["shard"])
    return RecordSettings(
        output=_output(options["output"], shard),
        drafter=drafter,
        policy=policy,
        defaults=defaults,
        length=default_length(parts) if options["length"] is None else options["length"],
        branches=options["branches"] or (fan.branches if fan else _usual_branches(options, parts, policy)),
        proposal=ProposalKind(proposal) if proposal else None,
        draft_quant=options["draft_quant"],
        draft_temperature=options["draft_temperature"],
        draft_top_k=options["draft_top_k"],
        draft_top_p=options["draft_top_p"],
        store_topk=options["store_topk"],
        features=FeatureMode(options["features"]),
        feature_dtype=_feature_dtype(options),
        lanes=options["lanes"],
        dense=options["dense"],
        warm=options["warm"],
        keep_text=not options["no_text"],
        keep_host=not options["no_host"],
        overwrite=options["overwrite"],
        sync_seconds=options["sync_seconds"],
        resume=options["resume"],
        fan=fan,
        target_impl=options["target_impl"],
        draft_impl=options["draft_impl"],
        numerics=options["numerics"],
        rounds=options["rounds"],
        overlap=options["overlap"],
        shard=shard,
        metrics=options["metrics"],
        recorder=options["recorder"],
        warm_up=options["warm_up"],
        step_time=None if options["cost"] is None else load_cost(options["cost"]).step_time,
    )


def _output(given: Path | None, shard: Shard | None) -> Path:
    if given is None:
        return Path(f"dflash-{datetime.now(UTC):%Y%m%d-%H%M%S}.parquet")
    return given if shard is None else shard.output(given)


def _usual_drafter(target: str) -> str:
    """The shipped drafter for the target that it was trained for, `ngram` for all others."""
    return shipped.NAME if shipped.fits(target) else "ngram"


def _usual_branches(options: Mapping[str, Any], parts: Sequence[Part], policy: Policy) -> int:
    """Two, but one where the rule judges chains alone."""
    temperature, proposal = options["temperature"], options["proposal"]
    asked = ProposalKind(proposal) if proposal else None
    kind = kind_of(parts, policy, temperature, options["draft_temperature"], asked)
    return BRANCHES if policy.rule.judges_trees(RuleContext(temperature, kind)) else 1


def _text(option: str, value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"Expected {option} to be UTF-8, found bytes that are not.") from error
    if not value:
        raise UsageError(f"Expected {option} to be some text, found an empty one.")
    return value


def _feature_dtype(options: Mapping[str, Any]) -> Encoding:
    """How hidden states are kept; refused where none are."""
    asked: Encoding | None = options["feature_dtype"]
    if asked is not None and options["features"] != "all":
        raise UsageError(f"Expected --features all with --feature-dtype, found {options['features']}.")
    return asked or "bf16"


def _refuse_conflicts(options: Mapping[str, Any]) -> None:
    if options["resume"] and not options["output"]:
        raise UsageError("Expected -o with --resume: the output of the recording to go on with.")
    if options["shard"] and not options["output"]:
        raise UsageError("Expected -o with --shard: a folder for all shards, or a file for this one.")
    if options["raw"] and options["system"] is not None:
        raise UsageError("Expected --system without --raw: raw text has no system message.")
    if str(options["output"]) == "-":
        raise UsageError("Expected -o PATH: a draft file ends with its index and cannot go to a pipe.")
    temperature = options["draft_temperature"]
    if temperature is not None and not is_temperature(temperature):
        raise UsageError(f"Expected --draft-temperature {TEMPERATURES}, found {temperature:g}.")


def load(options: Mapping[str, Any]) -> Target:
    """The target, on the device that was asked for, or on a GPU if there is one."""
    device = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        here = torch.device(device).type in ("cpu", "cuda") and torch.empty(0, device=device).numel() == 0
    except (RuntimeError, AssertionError):
        here = False
    if not here:
        raise UsageError(f"Expected cpu, or cuda where there is a GPU, as --device, found {device!r}.")
    if options.get("rounds") == "device" and options["target_impl"] == "generic":
        raise UsageError("Expected --target-impl native or captured with --rounds device, found generic.")
    if (asked := _needs_gpu(options)) and torch.device(device).type != "cuda":
        raise UsageError(f"Expected a CUDA device with {' and '.join(asked)}, found {device!r}.")
    try:
        with stages() as report:
            target = load_target(
                options["target"],
                device=device,
                dtype=options["dtype"],
                quantisation=options["target_quant"],
                progress=report,
            )
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise WeightsTooLarge(options["target"], device) from error
    return proven(target, Way(options["numerics"])) if options.get("target_impl") == "native" else target


def _needs_gpu(options: Mapping[str, Any]) -> list[str]:
    """The options that only a GPU can do, as they were given."""
    ways = {"target_impl": ("native", "captured"), "draft_impl": ("native",), "rounds": ("device",)}
    ways |= {"overlap": ("groups",)}
    return [
        f"--{name.replace('_', '-')} {options[name]}"
        for name, values in ways.items()
        if options.get(name) in values
    ]
