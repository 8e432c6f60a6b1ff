/* out = in, transposed: tiles of TILE x TILE by TILE x ROWS work items, through local memory or not. */
__kernel void transpose(__global const float *restrict in, __global float *restrict out) {
    const int x0 = get_group_id(0) * TILE, y0 = get_group_id(1) * TILE, me = get_local_id(0);
#if USE_LOCAL
    __local float tile[TILE][TILE + PAD];
    for (int r = get_local_id(1); r < TILE; r += ROWS) tile[r][me] = in[(y0 + r) * N + x0 + me];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int r = get_local_id(1); r < TILE; r += ROWS) out[(x0 + r) * N + y0 + me] = tile[me][r];
#else
    for (int r = get_local_id(1); r < TILE; r += ROWS) out[(x0 + me) * N + y0 + r] = in[(y0 + r) * N + x0 + me];
#endif
}
