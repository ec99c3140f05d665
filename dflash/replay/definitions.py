"""What every printed number means, in one sentence each."""

from __future__ import annotations

from collections.abc import Mapping

LOSSY = "lossy"
DEFINITIONS: Mapping[str, str] = {
    "tau": "accepted nodes + 1 per live round, before truncation; prefill and dense rows never count",
    "marginal": "live rounds that accept at least i nodes, of all live rounds; their sum is tau - 1",
    "conditional": "live rounds that accept at least i nodes, of those that accept i - 1 and draft one more",
    "lengths": "live rounds by accepted nodes, from 0",
    "drafted_per_token": "nodes of the trees used per token emitted before truncation",
    "interval": "95 % percentile bootstrap over requests, the same resamples for every policy; one request "
    "has none",
    "difference": "tau minus that of the first policy of the same kind, on the same rounds or, for walks, on "
    "the part of each answer that all of them cover",
    "emitted_per_round": "tokens kept per round; law-exact walks give it instead of tau, without coins",
    "exactness": "live: as it ran; re-judge: every round at its own recorded anchor, although another policy "
    "would have moved the later anchors; expectation: re-judge with the coins (and the target's choices "
    "under `match`) integrated out, over drafts with the draft of each depth too; path-exact: the rounds of "
    "a live run; law-exact: their law; lossy: the rounds of a live run up to where it leaves the trunk; "
    "simulation: the rounds of requests that a control ties together, if they run in file order",
    "covered": "share of the answers' tokens before their walk left the trunk",
    "clipped": "rounds that ran in a smaller shape than the control wanted, the largest that was recorded",
    "left_trunk": "requests whose walk left the trunk; their last round counts, nothing after it does",
    "near_ties": "rounds in which less than the file's tie tolerance decided a choice, a cut or a draft",
    "walk": "what a closed-loop replay of this policy would be on a dense recording: path-exact, law-exact, "
    "lossy (to where it leaves the trunk), simulation (a control ties requests together), or re-judge (none)",
    "lossless": "whether the emitted tokens follow the target's own law",
    "changed_rounds": "live rounds in which the policy accepts another number of nodes than was recorded",
    "off_choice_rounds": "live rounds that accept a token other than the target's own choice at its place",
    "unknown_bonus": "live rounds whose bonus token under this policy was not recorded",
    "coin_ties": "live rounds with |log u - (log p - log q)| < 1e-6 at a coin that was tossed",
}
