/* c = a @ b, all of them N x N: tiles of all three loops, and U rows of c at a time in the innermost. */
#define MIN(x, y) ((x) < (y) ? (x) : (y))

void matmul(const float *restrict a, const float *restrict b, float *restrict c) {
#pragma omp parallel for schedule(static)
    for (int i0 = 0; i0 < N; i0 += TILE_I) {
        for (int i = i0; i < MIN(i0 + TILE_I, N); i++)
            for (int j = 0; j < N; j++) c[i * N + j] = 0;
        for (int k0 = 0; k0 < N; k0 += TILE_K)
            for (int j0 = 0; j0 < N; j0 += TILE_J)
                for (int i = i0; i < MIN(i0 + TILE_I, N); i += UNROLL_I)
                    for (int k = k0; k < MIN(k0 + TILE_K, N); k++)
                        for (int u = 0; u < UNROLL_I; u++) {
                            const float x = a[(i + u) * N + k];
                            for (int j = j0; j < MIN(j0 + TILE_J, N); j++) c[(i + u) * N + j] += x * b[k * N + j];
                        }
    }
}
