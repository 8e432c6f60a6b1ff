"""Compiled files: loading, inspecting, combining, bundling and signing them."""
