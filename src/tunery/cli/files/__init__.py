"""Commands about compiled files."""
