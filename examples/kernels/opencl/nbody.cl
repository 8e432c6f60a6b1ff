/* The acceleration of each of N bodies by all others; positions are x, y, z and mass. */
#define SOFT 1e-2f

__kernel void nbody(__global const float *restrict x, __global const float *restrict y, __global const float *restrict z,
                    __global const float *restrict mass, __global float *restrict ax, __global float *restrict ay,
                    __global float *restrict az) {
    const int i = get_global_id(0), me = get_local_id(0);
    const float px = x[i], py = y[i], pz = z[i];
    float sx = 0, sy = 0, sz = 0;
#if USE_LOCAL
    __local float4 others[GROUP];
    for (int j0 = 0; j0 < N; j0 += GROUP) {
        others[me] = (float4)(x[j0 + me], y[j0 + me], z[j0 + me], mass[j0 + me]);
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll UNROLL
        for (int j = 0; j < GROUP; j++) {
            const float4 other = others[j];
#else
    {
#pragma unroll UNROLL
        for (int j = 0; j < N; j++) {
            const float4 other = (float4)(x[j], y[j], z[j], mass[j]);
#endif
            const float dx = other.x - px, dy = other.y - py, dz = other.z - pz;
            const float square = dx * dx + dy * dy + dz * dz + SOFT;
#if RSQRT
            const float inverse = rsqrt(square);
#else
            const float inverse = 1.0f / sqrt(square);
#endif
            const float force = other.w * inverse * inverse * inverse;
            sx += force * dx;
            sy += force * dy;
            sz += force * dz;
        }
#if USE_LOCAL
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }
    ax[i] = sx;
    ay[i] = sy;
    az[i] = sz;
}
