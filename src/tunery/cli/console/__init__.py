"""What the commands share: options, output, progress, messages, interrupts, and calls of a service."""
