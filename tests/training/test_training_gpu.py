"""On a GPU: captured steps of the target and of the training do what they do uncaptured."""

from __future__ import annotations

import pytest
import torch

from dflash.target.load import load_target
from dflash.training.dialogue import Manners
from dflash.training.learner import Learner
from dflash.training.run import new_drafter
from dflash.training.settings import DrafterSettings, StepSettings, TextSettings, TrainSettings
from dflash.training.sizes import block_config
from dflash.training.texts import Library

# inductor advises a setting that would change what plain forwards compute
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:TensorFloat32")]


@pytest.fixture(scope="module")
def target(tiny_folder):
    return load_target(str(tiny_folder), device="cuda", dtype="float32")


@pytest.fixture(scope="module")
def settings():
    texts = TextSettings(texts=24, streams=12, length=300, held_out=4, manners=Manners(30, 60))
    step = StepSettings(steps=20, texts=6, anchors=8)
    return TrainSettings(DrafterSettings(family="dspark", layers=1, drafts=3), texts, step)


@pytest.fixture(scope="module")
def corpus(target, settings):
    taps = block_config(target, settings.drafter).taps
    library = Library(target.model, target.tokenizer, settings.text, taps, [], 0)
    return library.training(0, None, lambda stage, share: None)


def test_states_of_captured_forwards_are_those_of_a_plain_one(target, corpus):
    with torch.inference_mode():
        plain = target.model(input_ids=corpus.tokens, output_hidden_states=True, use_cache=False)
    torch.testing.assert_close(corpus.taps[:, :-1], plain.hidden_states[1][:, :-1], atol=1e-3, rtol=1e-3)
    greedy = plain.logits[:, :-1].argmax(-1) == corpus.tokens[:, 1:]
    own = corpus.own[:, 1:]
    assert own.float().mean() > 0.3
    assert greedy[own].float().mean() > 0.5


def test_captured_steps_learn_what_uncaptured_ones_learn(target, corpus, settings):
    def losses(warm):
        output = target.model.get_output_embeddings()
        learner = Learner(new_drafter(target, settings), output, corpus, settings.step, 0)
        learner.work.warm = warm
        found = []
        for _ in range(settings.step.steps):
            learner.step()
            found.append(learner.measured()[0])
        return torch.tensor(found)

    plain, captured = losses(settings.step.steps), losses(2)
    assert plain[-1] < plain[0]
    torch.testing.assert_close(captured, plain, atol=2e-2, rtol=2e-2)
