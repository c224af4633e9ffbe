"""The rounds of boosting, and the one training loop within each."""
