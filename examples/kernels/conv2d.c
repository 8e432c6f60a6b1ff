/* What a K x K window of weights sums at each place of an image, without a border. */
#define H_OUT (H - K + 1)
#define W_OUT (W - K + 1)
#define MIN(x, y) ((x) < (y) ? (x) : (y))

void conv2d(const float *restrict image, const float *restrict weights, float *restrict out) {
#pragma omp parallel for schedule(static)
    for (int y0 = 0; y0 < H_OUT; y0 += TILE_Y)
        for (int x0 = 0; x0 < W_OUT; x0 += TILE_X)
            for (int y = y0; y < MIN(y0 + TILE_Y, H_OUT); y++) {
#if ACCUMULATE
                float sums[TILE_X] = {0};
                const int width = MIN(TILE_X, W_OUT - x0);
                for (int r = 0; r < K; r++)
                    for (int s = 0; s < K; s++)
                        for (int x = 0; x < width; x++) sums[x] += weights[r * K + s] * image[(y + r) * W + x0 + x + s];
                for (int x = 0; x < width; x++) out[y * W_OUT + x0 + x] = sums[x];
#else
                for (int x = x0; x < MIN(x0 + TILE_X, W_OUT); x++) {
                    float sum = 0;
                    for (int r = 0; r < K; r++)
                        for (int s = 0; s < K; s++) sum += weights[r * K + s] * image[(y + r) * W + x + s];
                    out[y * W_OUT + x] = sum;
                }
#endif
            }
}
