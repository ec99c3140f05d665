"""Public drafter checkpoints: one reader for every layout, by what their tensors and configuration say."""
