/* What a K x K window of weights sums at each place of an image, without a border: WORK places for each work item. */
#define H_OUT (H - K + 1)
#define W_OUT (W - K + 1)

__kernel void conv2d(__global const float *restrict image, __global const float *restrict weights,
                     __global float *restrict out) {
    const int y = get_global_id(1), first = get_group_id(0) * GROUP_X * WORK + get_local_id(0);
    float sums[WORK];
    for (int w = 0; w < WORK; w++) sums[w] = 0;
    for (int r = 0; r < K; r++)
        for (int s = 0; s < K; s++) {
            const float weight = weights[r * K + s];
            for (int w = 0; w < WORK; w++) sums[w] += weight * image[(y + r) * W + first + w * GROUP_X + s];
        }
    for (int w = 0; w < WORK; w++) out[y * W_OUT + first + w * GROUP_X] = sums[w];
}
