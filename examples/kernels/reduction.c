/* The sum of N numbers, in LANES partial sums for each of CHUNKS parts. */
void reduction(const float *restrict x, float *restrict sum) {
    double total = 0;
#pragma omp parallel for reduction(+ : total) schedule(static) if (CHUNKS > 1)
    for (int part = 0; part < CHUNKS; part++) {
        const float *mine = x + (long)part * (N / CHUNKS);
        float lanes[LANES] = {0};
        for (int i = 0; i < N / CHUNKS; i += LANES * UNROLL)
            for (int u = 0; u < UNROLL; u++)
                for (int l = 0; l < LANES; l++) lanes[l] += mine[i + u * LANES + l];
        for (int l = 0; l < LANES; l++) total += lanes[l];
    }
    sum[0] = total;
}
