/* One step of Jacobi's method: the mean of the four neighbours; the border stays. WORK places for each work item. */
__kernel void stencil(__global const float *restrict grid, __global float *restrict out) {
    const int y = get_global_id(1), first = get_group_id(0) * GROUP_X * WORK + get_local_id(0);
    for (int w = 0; w < WORK; w++) {
        const int x = first + w * GROUP_X, i = y * N + x;
        const int inside = y > 0 && y < N - 1 && x > 0 && x < N - 1;
#if BRANCH
        if (inside)
            out[i] = 0.25f * (grid[i - N] + grid[i + N] + grid[i - 1] + grid[i + 1]);
        else
            out[i] = grid[i];
#else
        const int up = inside ? i - N : i, down = inside ? i + N : i, left = inside ? i - 1 : i,
                  right = inside ? i + 1 : i;
        out[i] = 0.25f * (grid[up] + grid[down] + grid[left] + grid[right]);
#endif
    }
}
