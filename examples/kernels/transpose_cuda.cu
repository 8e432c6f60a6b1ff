/* out = given, transposed: a block turns TILE_Y rows of TILE_X numbers through shared memory, ROWS of them at a time. */
__global__ void transpose(const float *__restrict__ given, float *__restrict__ out) {
    __shared__ float tile[TILE_Y][TILE_X + PAD];
    const int x0 = blockIdx.x * TILE_X, y0 = blockIdx.y * TILE_Y;
    const int me = threadIdx.y * blockDim.x + threadIdx.x, all = blockDim.x * blockDim.y;
#pragma unroll UNROLL
    for (int i = me; i < TILE_Y * TILE_X; i += all)
        tile[i / TILE_X][i % TILE_X] = given[(y0 + i / TILE_X) * N + x0 + i % TILE_X];
    __syncthreads();
#pragma unroll UNROLL
    for (int i = me; i < TILE_Y * TILE_X; i += all)
        out[(x0 + i / TILE_Y) * N + y0 + i % TILE_Y] = tile[i % TILE_Y][i / TILE_Y];
}
