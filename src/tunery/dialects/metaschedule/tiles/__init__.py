"""Sums of products from register tiles: which programs are such, their designs in numbers, and the code of a design."""
