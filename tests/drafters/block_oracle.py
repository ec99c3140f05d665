"""What block drafters compute, in plain float64 loops over a checkpoint's files; nothing of the package.

A `trap` names one mistake to make: a test that does not see it is worth nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

TRAPS = (
    *("tap off by one", "slot shift", "no fused norm", "no head norms", "input norm on context"),
    *("no window", "not causal", "all causal", "sees the anchor's taps", "positions from zero"),
    *("no final norm", "no soft-cap", "token before ignored", "no convolution", "filters swapped"),
)


@dataclass
class Oracle:
    """A checkpoint folder in z-lab's, SpecForge's or DeepSpec's layout, and the target's raw tables."""

    folder: Path
    table: np.ndarray
    head: np.ndarray
    trap: str | None = None

    def __post_init__(self):
        self.config = json.loads((self.folder / "config.json").read_text())
        self.facts = self.config | self.config.get("dflash_config", {})
        stored = load_file(self.folder / "model.safetensors")
        self.tensors = {name: value.astype(np.float64) for name, value in stored.items()}
        self.table = self.tensors.get("embed_tokens.weight", self.table)
        self.head = self.tensors.get("lm_head.weight", self.head)
        self.next = "markov_rank" in self.facts
        self.block = self.facts["block_size"]

    def logits(self, states, anchor, before):
        """Logits [drafts, vocabulary] from the anchor; `states` are the target's hidden states [T, H] by
        index, `before` the tokens before each drafted one, the anchor's first.
        """
        hidden = self.hidden(states, anchor, before[0])
        first = 0 if self.next else 1
        if self.trap == "slot shift":
            first = 1 - first
        hidden = hidden[first : first + len(before)]
        logits = hidden @ self.head.T
        cap = self.facts.get("final_logit_softcapping")
        if cap and self.trap != "no soft-cap":
            logits = np.tanh(logits / cap) * cap
        if self.trap == "token before ignored":
            before = [before[0]] * len(before)
        if "candidate_selector.hidden_projection.weight" in self.tensors:
            return self.selected(hidden, logits, before[: len(hidden)])
        return logits + self.markov(hidden, before[: len(hidden)])

    def hidden(self, states, anchor, token):
        """States [block, hidden] after the final norm."""
        shift = 0 if self.trap == "tap off by one" else 1
        taps = np.concatenate([states[layer + shift] for layer in self.facts["target_layer_ids"]], axis=-1)
        seen = anchor + (self.trap == "sees the anchor's taps")
        context = taps[:seen] @ self.tensors["fc.weight"].T
        if self.trap != "no fused norm":
            context = self.norm(context, "hidden_norm.weight")
        rows = self.table[[token, *[self.facts["mask_token_id"]] * (self.block - 1)]]
        for layer in range(self.config["num_hidden_layers"]):
            rows = self.layer(layer, rows, context, anchor)
        return rows if self.trap == "no final norm" else self.norm(rows, "norm.weight")

    def layer(self, layer, rows, context, anchor):
        name = f"layers.{layer}."
        normed = self.norm(rows, name + "input_layernorm.weight")
        before, after = self.filters(name + "attention_conv.", normed)
        out = self.attention(layer, self.convolve(normed, before), context, anchor)
        rows = rows + self.convolve(out, after)
        normed = self.norm(rows, name + "post_attention_layernorm.weight")
        before, after = self.filters(name + "mlp_conv.", normed)
        inner = self.convolve(normed, before)
        gate = inner @ self.tensors[name + "mlp.gate_proj.weight"].T
        up = inner @ self.tensors[name + "mlp.up_proj.weight"].T
        out = (gate / (1 + np.exp(-gate)) * up) @ self.tensors[name + "mlp.down_proj.weight"].T
        return rows + self.convolve(out, after)

    def attention(self, layer, rows, context, anchor):
        name = f"layers.{layer}.self_attn."
        if self.trap == "input norm on context":
            context = self.norm(context, f"layers.{layer}.input_layernorm.weight")
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q = self.heads(rows @ self.tensors[name + "q_proj.weight"].T, name + "q_norm.weight")
        both = np.concatenate([context, rows])
        k = self.heads(both @ self.tensors[name + "k_proj.weight"].T, name + "k_norm.weight")
        v = self.heads(both @ self.tensors[name + "v_proj.weight"].T, None)
        start = 0 if self.trap == "positions from zero" else anchor
        places = [*range(len(context)), *range(start, start + len(rows))]
        q, k = self.rotate(q, places[len(context) :]), self.rotate(k, places)
        out = np.zeros((len(rows), heads * q.shape[-1]))
        for row in range(len(rows)):
            for head in range(heads):
                group = head * groups // heads
                keys = [i for i in range(len(both)) if self.sees(layer, row, i - len(context), anchor, i)]
                scores = np.array([q[row, head] @ k[i, group] for i in keys]) / np.sqrt(q.shape[-1])
                weights = np.exp(scores - scores.max())
                mixed = sum(w * v[i, group] for w, i in zip(weights / weights.sum(), keys, strict=True))
                out[row, head * q.shape[-1] : (head + 1) * q.shape[-1]] = mixed
        return out @ self.tensors[name + "o_proj.weight"].T

    def sees(self, layer, row, other, anchor, position):
        """Whether a block row sees block row `other` or, where that is negative, context row `position`."""
        sliding = self.config["layer_types"][layer] == "sliding_attention"
        causal = self.config.get("is_causal")
        causal = sliding if causal is None else causal
        if self.trap in ("not causal", "all causal"):
            causal = self.trap == "all causal"
        distance = row - other if other >= 0 else anchor + row - position
        if sliding and self.trap != "no window" and abs(distance) >= self.config["sliding_window"]:
            return False
        return other < 0 or not causal or other <= row

    def heads(self, rows, norm):
        split = rows.reshape(len(rows), -1, self.config["head_dim"])
        return split if norm is None or self.trap == "no head norms" else self.norm(split, norm)

    def norm(self, rows, name):
        size = np.sqrt((rows**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return rows / size * self.tensors[name]

    def rotate(self, rows, places):
        half = rows.shape[-1] // 2
        turns = self.config["rope_theta"] ** (-np.arange(half) / half)
        angle = np.array(places)[:, None, None] * turns
        left, right = rows[..., :half], rows[..., half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def filters(self, name, rows):
        """Both filters of every row, each [block, kernel, hidden]; None where the layer has none."""
        if name + "base_kernel" not in self.tensors or self.trap == "no convolution":
            return None, None
        base = self.tensors[name + "base_kernel"]
        change = rows @ self.tensors[name + "kernel_projection.weight"].T
        change = change.reshape(len(rows), 2, base.shape[1], -1)
        group = self.facts["conv_group_size"]
        found = [base[side] + np.repeat(change[:, side], group, axis=-1) for side in (0, 1)]
        return found[::-1] if self.trap == "filters swapped" else found

    def convolve(self, rows, kernel):
        if kernel is None:
            return rows
        out = np.zeros_like(rows)
        for row in range(len(rows)):
            for back in range(min(kernel.shape[1], row + 1)):
                out[row] += kernel[row, back] * rows[row - back]
        return out

    def markov(self, hidden, before):
        if "markov_head.markov_w1.weight" not in self.tensors:
            return 0.0
        first, second = (self.tensors[f"markov_head.markov_w{i}.weight"] for i in (1, 2))
        kind, state, found = self.facts["markov_head_type"], np.zeros(first.shape[1]), []
        for row, token in zip(hidden, before, strict=True):
            mixed = known = first[token]
            if kind == "gated":
                mixed = sigmoid(self.linear("markov_head.gate_proj", [row, known])) * known
            if kind == "rnn":
                joint = self.linear("markov_head.joint_proj", [state, known, row])
                gate, fresh, out = np.split(joint, 3)
                state = sigmoid(gate) * state + (1 - sigmoid(gate)) * np.tanh(fresh)
                mixed = np.tanh(out)
            found.append(second @ mixed)
        return np.stack(found)

    def confidence(self, states, anchor, before):
        """Expected acceptance of each drafted token, or None."""
        if "confidence_head.proj.weight" not in self.tensors:
            return None
        hidden, known = self.hidden(states, anchor, before[0]), []
        for row, token in zip(hidden, before, strict=False):
            parts = [row, self.tensors["markov_head.markov_w1.weight"][token]]
            whole = self.facts["confidence_head_with_markov"]
            known.append(sigmoid(self.linear("confidence_head.proj", parts if whole else parts[:1]))[0])
        return known

    def linear(self, name, parts):
        return self.tensors[name + ".weight"] @ np.concatenate(parts) + self.tensors[name + ".bias"]

    def selected(self, hidden, logits, before):
        best = self.facts["selector_top_k"]
        found = np.full_like(logits, -np.inf)
        for slot, (row, token) in enumerate(zip(hidden, before, strict=True)):
            read = self.tensors["candidate_selector.hidden_projection.weight"] @ row
            read = read * self.tensors["candidate_selector.predecessor_codebook"][token]
            for candidate in np.argsort(-logits[slot])[:best]:
                score = read @ self.tensors["candidate_selector.successor_codebook"][candidate]
                found[slot, candidate] = logits[slot, candidate] + score
        return found


def sigmoid(value):
    return 1 / (1 + np.exp(-value))
