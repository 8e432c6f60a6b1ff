/* The sum of N numbers by one work group: LANES partial sums for each work item, then a tree in local memory. */
__kernel void reduction(__global const float *restrict x, __global float *restrict sum) {
    const int me = get_local_id(0);
    __local float parts[GROUP];
    float lanes[LANES];
    for (int l = 0; l < LANES; l++) lanes[l] = 0;
#if STRIDED
    for (int i = me * LANES; i < N; i += GROUP * LANES)
#else
    for (int i = me * (N / GROUP); i < (me + 1) * (N / GROUP); i += LANES)
#endif
        for (int l = 0; l < LANES; l++) lanes[l] += x[i + l];
    float mine = 0;
    for (int l = 0; l < LANES; l++) mine += lanes[l];
    parts[me] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int width = GROUP / 2; width > 0; width /= 2) {
        if (me < width) parts[me] += parts[me + width];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (me == 0) sum[0] = parts[0];
}
