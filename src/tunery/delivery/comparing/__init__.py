"""Networks beside their rivals: in turns, on the same inputs, each in a process of its own."""
