/* c = a @ b, all of them N x N: WORK columns for each work item, a's rows in local memory or not. */
__kernel void matmul(__global const float *restrict a, __global const float *restrict b, __global float *restrict c) {
    const int row = get_global_id(1), first = get_group_id(0) * GROUP_X * WORK + get_local_id(0);
    float sums[WORK];
    for (int w = 0; w < WORK; w++) sums[w] = 0;
#if USE_LOCAL
    __local float part[GROUP_Y][TILE_K];
#endif
    for (int k0 = 0; k0 < N; k0 += TILE_K) {
#if USE_LOCAL
        for (int k = get_local_id(0); k < TILE_K; k += GROUP_X) part[get_local_id(1)][k] = a[row * N + k0 + k];
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
        for (int k = 0; k < TILE_K; k++) {
#if USE_LOCAL
            const float x = part[get_local_id(1)][k];
#else
            const float x = a[row * N + k0 + k];
#endif
            for (int w = 0; w < WORK; w++) sums[w] += x * b[(k0 + k) * N + first + w * GROUP_X];
        }
#if USE_LOCAL
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }
    for (int w = 0; w < WORK; w++) c[row * N + first + w * GROUP_X] = sums[w];
}
