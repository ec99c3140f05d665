"""Every list of a row is as long as the row's tree says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.view import Ints, View, first
from dflash.draftfile.violations import ListLength

DRAFT_TOPK = ("draft_topk_token", "draft_topk_logit", "draft_topk_target_logit")
UNKNOWN = -9


@dataclass(frozen=True, slots=True)
class _Fit:
    """How the length of a list follows from the number of nodes n: `times * (n + extra)`."""

    times: int
    extra: int

    def nodes(self, lengths: Ints) -> Ints:
        """The n that explains each length; -2 if none does, UNKNOWN for a null list."""
        whole = lengths if self.times == 1 else lengths // self.times
        nodes = whole - self.extra
        if self.times > 1:
            nodes[lengths != whole * self.times] = -2
        nodes[lengths < 0] = UNKNOWN
        return nodes

    def offsets(self, nodes: Ints) -> Ints:
        """Where lists begin that follow from where the nodes of each row begin."""
        own = nodes + self.extra * np.arange(len(nodes), dtype=nodes.dtype) if self.extra else nodes
        return own if self.times == 1 else self.times * own

    def __str__(self) -> str:
        return f"{self.times} x (nodes + {self.extra})" if self.extra else "nodes x 1"


def check_lengths(view: View) -> None:
    """n elements per node list, n + 1 per slot list, K (n + 1) per top-k list, the same n in a row."""
    topk = view.limits.topk
    fits = {"node": _Fit(1, 0), "slot": _Fit(1, 1)} | ({"K per slot": _Fit(topk, 1)} if topk else {})
    known: Ints | None = None
    begins: Ints | None = None
    for name in view.table.column_names:
        fit = fits.get(COLUMN[name].per) if name in COLUMN and COLUMN[name].is_list else None
        if fit is None:
            continue
        lists = view.lists(name)
        # a null list that fits has nothing to be compared with
        if begins is not None and np.array_equal(lists.offsets, fit.offsets(begins)):
            continue
        if known is None and lists.absent is None and COLUMN[name].per == "node":
            known, begins = lists.counts, lists.offsets
            continue
        known = np.full(view.table.num_rows, UNKNOWN) if known is None else known
        lengths = lists.lengths
        nodes = fit.nodes(lengths)
        odd = (nodes != UNKNOWN) & ((nodes < 0) | ((known != UNKNOWN) & (nodes != known)))
        if odd.any():
            row = first(odd)
            n = f" for {known[row]} nodes" if known[row] != UNKNOWN else ""
            view.fail(ListLength, f"{fit} elements in {name}", f"{lengths[row]}{n}", row)
        known = np.where(known == UNKNOWN, nodes, known)
        if begins is None and lists.absent is None and COLUMN[name].per == "node":
            begins = lists.offsets


def check_draft_topk(view: View) -> None:
    """The three lists of the drafter's top-k are equally long: K for every slot that has a `draft_lse`."""
    names = [name for name in DRAFT_TOPK if view.has(name)]
    for name in names[1:]:
        first, lengths = view.lists(names[0]).lengths, view.lists(name).lengths
        odd = (first >= 0) & (lengths >= 0) & (first != lengths)
        view.report(odd, ListLength, f"as many elements in {name} as in {names[0]}", lengths)
    if names and view.has("draft_lse"):
        lse, lengths = view.lists("draft_lse"), view.lists(names[0]).lengths
        valid = lse.values.is_valid().to_numpy(zero_copy_only=False)
        expanded = np.bincount(lse.rows[valid], minlength=len(lengths))
        odd = (lengths > 0) & (lse.lengths >= 0) & (lengths % np.maximum(expanded, 1) + (expanded == 0) > 0)
        view.report(odd, ListLength, f"K elements in {names[0]} for every draft_lse", lengths)
