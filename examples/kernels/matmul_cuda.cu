/* c = a @ b, all of them N x N: a block computes TILE_Y x TILE_X of c, each of its threads WORK_Y x WORK_X of these. */
#define ROWS (TILE_Y / WORK_Y)
#define COLS (TILE_X / WORK_X)

__global__ void matmul(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c) {
    __shared__ float tile_a[TILE_K][TILE_Y + PAD], tile_b[TILE_K][TILE_X];
    const int x = threadIdx.x, y = threadIdx.y, me = y * COLS + x;
    const int row0 = blockIdx.y * TILE_Y, col0 = blockIdx.x * TILE_X;
    float sums[WORK_Y][WORK_X] = {};
    for (int k0 = 0; k0 < N; k0 += TILE_K) {
        for (int i = me; i < TILE_Y * TILE_K; i += ROWS * COLS)
            tile_a[i % TILE_K][i / TILE_K] = a[(row0 + i / TILE_K) * N + k0 + i % TILE_K];
        for (int i = me; i < TILE_K * TILE_X; i += ROWS * COLS)
            tile_b[i / TILE_X][i % TILE_X] = b[(k0 + i / TILE_X) * N + col0 + i % TILE_X];
        __syncthreads();
#pragma unroll UNROLL
        for (int k = 0; k < TILE_K; k++) {
            float of_a[WORK_Y], of_b[WORK_X];
#pragma unroll
            for (int i = 0; i < WORK_Y; i++) of_a[i] = tile_a[k][y + i * ROWS];
#pragma unroll
            for (int j = 0; j < WORK_X; j++) of_b[j] = tile_b[k][x + j * COLS];
#pragma unroll
            for (int i = 0; i < WORK_Y; i++)
#pragma unroll
                for (int j = 0; j < WORK_X; j++) sums[i][j] += of_a[i] * of_b[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < WORK_Y; i++)
        for (int j = 0; j < WORK_X; j++) c[(row0 + y + i * ROWS) * N + col0 + x + j * COLS] = sums[i][j];
}
