"""Re-judge and check recorded rounds without a model."""
