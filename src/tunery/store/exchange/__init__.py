"""Records that leave a store or come from elsewhere, as files: what is written, what is accepted."""
