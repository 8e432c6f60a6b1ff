/* The acceleration of each of N bodies by all others; positions are x, y, z and mass. */
#include <math.h>
#define SOFT 1e-2f
#define MIN(a, b) ((a) < (b) ? (a) : (b))

void nbody(const float *restrict x, const float *restrict y, const float *restrict z, const float *restrict mass,
           float *restrict ax, float *restrict ay, float *restrict az) {
#pragma omp parallel for schedule(static)
    for (int i0 = 0; i0 < N; i0 += BLOCK) {
        float sx[BLOCK] = {0}, sy[BLOCK] = {0}, sz[BLOCK] = {0};
        for (int j0 = 0; j0 < N; j0 += TILE_J)
#if BODIES_INSIDE
            for (int j = j0; j < MIN(j0 + TILE_J, N); j++)
                for (int i = 0; i < BLOCK; i++) {
#else
            for (int i = 0; i < BLOCK; i++)
                for (int j = j0; j < MIN(j0 + TILE_J, N); j++) {
#endif
                    const float dx = x[j] - x[i0 + i], dy = y[j] - y[i0 + i], dz = z[j] - z[i0 + i];
                    const float inverse = 1.0f / sqrtf(dx * dx + dy * dy + dz * dz + SOFT);
                    const float force = mass[j] * inverse * inverse * inverse;
                    sx[i] += force * dx;
                    sy[i] += force * dy;
                    sz[i] += force * dz;
                }
        for (int i = 0; i < BLOCK; i++) {
            ax[i0 + i] = sx[i];
            ay[i0 + i] = sy[i];
            az[i0 + i] = sz[i];
        }
    }
}
