"""Compiled networks, loaded with TVM's runtime alone: nothing here imports the compiler."""
