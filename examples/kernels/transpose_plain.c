void transpose(const float *in, float *out) {
    for (int i = 0; i < N * N; i++) out[i % N * N + i / N] = in[i];
}
