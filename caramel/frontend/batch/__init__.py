"""What becomes of the examples of a batch on their way to the loss: op by op, nothing is guessed."""
