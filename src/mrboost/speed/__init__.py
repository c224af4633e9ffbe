"""Quick copies of networks, the passes that make them, and CUDA graphs of steps."""
