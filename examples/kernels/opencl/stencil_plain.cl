__kernel void stencil(__global const float *grid, __global float *out) {
    const int x = get_global_id(0), y = get_global_id(1), i = y * N + x;
    const int inside = y > 0 && y < N - 1 && x > 0 && x < N - 1;
    out[i] = inside ? 0.25f * (grid[i - N] + grid[i + N] + grid[i - 1] + grid[i + 1]) : grid[i];
}
