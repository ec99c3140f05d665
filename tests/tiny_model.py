"""A model small enough to decode in milliseconds: random weights, one token a byte, a chat template."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as tf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|bos|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(template: bool = True) -> tf.PreTrainedTokenizerFast:
    """One token a byte and three special ones; every text has tokens and every token has bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = tf.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=SPECIAL[0], eos_token=SPECIAL[2]
    )
    tokenizer.chat_template = TEMPLATE if template else None
    return tokenizer


def write_tiny(
    folder: Path, *, layers: int = 2, seed: int = 0, window: int = 512, template: bool = True
) -> Path:
    """A folder that `load_target` reads; its greedy answers repeat themselves, so drafts are accepted."""
    tokenizer = byte_tokenizer(template)
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=len(tokenizer) + 5,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=window,
        initializer_range=0.08,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = tf.LlamaForCausalLM(config)
    # a sharp head on a weak body: nearly a Markov chain, so greedy answers run into cycles
    printable = [token for token in range(len(tokenizer)) if tokenizer.decode([token]).isascii()]
    model.lm_head.weight.data[printable] *= 8.0
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
