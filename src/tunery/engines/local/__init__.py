"""Worker processes on this machine: forked from a zygote, watched and killed from outside."""
