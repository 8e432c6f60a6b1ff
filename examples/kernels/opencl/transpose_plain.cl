__kernel void transpose(__global const float *in, __global float *out) {
    const int x = get_global_id(0);
    for (int y = get_global_id(1); y < N; y += get_global_size(1)) out[x * N + y] = in[y * N + x];
}
