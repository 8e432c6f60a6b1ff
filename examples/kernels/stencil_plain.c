void stencil(const float *grid, float *out) {
    for (int i = 0; i < N * N; i++) {
        const int y = i / N, x = i % N, inside = y > 0 && y < N - 1 && x > 0 && x < N - 1;
        out[i] = inside ? 0.25f * (grid[i - N] + grid[i + N] + grid[i - 1] + grid[i + 1]) : grid[i];
    }
}
