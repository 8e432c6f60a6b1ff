/* out = in, transposed: tiles, and which of them is walked along first. */
#define MIN(x, y) ((x) < (y) ? (x) : (y))

void transpose(const float *restrict in, float *restrict out) {
#pragma omp parallel for schedule(static)
    for (int y0 = 0; y0 < N; y0 += TILE_Y)
        for (int x0 = 0; x0 < N; x0 += TILE_X)
#if ALONG_OUTPUT
            for (int x = x0; x < MIN(x0 + TILE_X, N); x++)
                for (int y = y0; y < MIN(y0 + TILE_Y, N); y++) out[x * N + y] = in[y * N + x];
#else
            for (int y = y0; y < MIN(y0 + TILE_Y, N); y++)
                for (int x = x0; x < MIN(x0 + TILE_X, N); x++) out[x * N + y] = in[y * N + x];
#endif
}
