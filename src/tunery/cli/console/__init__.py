"""What the commands share: options, output, progress, messages, interrupts, and the line to the daemon."""
