"""Train drafters from draft files or a live target."""
