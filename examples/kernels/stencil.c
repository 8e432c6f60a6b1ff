/* One step of Jacobi's method: the mean of the four neighbours; the border stays. */
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define IN(y, x) grid[(y) * N + (x)]

void stencil(const float *restrict grid, float *restrict out) {
    for (int i = 0; i < N; i++) {
        out[i] = grid[i];
        out[(N - 1) * N + i] = grid[(N - 1) * N + i];
    }
#pragma omp parallel for schedule(SCHEDULE)
    for (int y0 = 1; y0 < N - 1; y0 += TILE_Y) {
        for (int y = y0; y < MIN(y0 + TILE_Y, N - 1); y++) {
            out[y * N] = IN(y, 0);
            out[y * N + N - 1] = IN(y, N - 1);
        }
#if COLUMNS_OUTSIDE
        for (int x0 = 1; x0 < N - 1; x0 += TILE_X)
            for (int y = y0; y < MIN(y0 + TILE_Y, N - 1); y++)
#else
        for (int y = y0; y < MIN(y0 + TILE_Y, N - 1); y++)
            for (int x0 = 1; x0 < N - 1; x0 += TILE_X)
#endif
                for (int x = x0; x < MIN(x0 + TILE_X, N - 1); x++)
                    out[y * N + x] = 0.25f * (IN(y - 1, x) + IN(y + 1, x) + IN(y, x - 1) + IN(y, x + 1));
    }
}
