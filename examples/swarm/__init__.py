"""The parts of the MNIST example: data, model, one peer, the launcher of several, and what they show."""
