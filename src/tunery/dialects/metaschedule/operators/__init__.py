"""What a fused program computes, in words that other dialects know.

nests  the program as plain data
heavy  its heavy operator: a convolution, a product, a pool, a reduction
fused  the steps behind that
keys   the operator key of both
"""
