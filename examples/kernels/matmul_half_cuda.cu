/* c = a @ b on tensor cores: halves in, floats out, all of them N x N. A block computes TILE_Y x TILE_X of c, each of
   its warps WARP_Y x WARP_X of these; while it multiplies TILE_K columns of a, it copies the next STAGES - 1 times as
   many. */
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda;

#define WARPS_X (TILE_X / WARP_X)
#define THREADS (32 * WARPS_X * (TILE_Y / WARP_Y))
#define ROW_A (TILE_K + PAD)
#define ROW_B (TILE_X + PAD)
#define AT_ONCE 8 /* halves: 16 bytes */

__device__ void copy(half *to, const half *from, int rows, int width, int row_to, int me) {
    for (int i = me * AT_ONCE; i < rows * width; i += THREADS * AT_ONCE)
        __pipeline_memcpy_async(to + i / width * row_to + i % width, from + (size_t)(i / width) * N + i % width, 16);
}

__global__ void matmul(const half *__restrict__ a, const half *__restrict__ b, float *__restrict__ c) {
    extern __shared__ __align__(128) half tiles[];
    half(*tile_a)[TILE_Y * ROW_A] = (half(*)[TILE_Y * ROW_A])tiles;
    half(*tile_b)[TILE_K * ROW_B] = (half(*)[TILE_K * ROW_B])(tiles + STAGES * TILE_Y * ROW_A);
    const int me = threadIdx.y * blockDim.x + threadIdx.x, warp = me / 32;
    const int y = warp / WARPS_X * WARP_Y, x = warp % WARPS_X * WARP_X;
    const half *of_a = a + (size_t)blockIdx.y * TILE_Y * N, *of_b = b + blockIdx.x * TILE_X;

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[WARP_Y / 16][WARP_X / 16];
#pragma unroll
    for (int i = 0; i < WARP_Y / 16; i++)
#pragma unroll
        for (int j = 0; j < WARP_X / 16; j++) wmma::fill_fragment(sums[i][j], 0.0f);

    for (int next = 0; next < N + (STAGES - 1) * TILE_K; next += TILE_K) {
        if (next < N) {
            const int stage = next / TILE_K % STAGES;
            copy(tile_a[stage], of_a + next, TILE_Y, TILE_K, ROW_A, me);
            copy(tile_b[stage], of_b + (size_t)next * N, TILE_K, TILE_X, ROW_B, me);
        }
        __pipeline_commit();
        const int now = next - (STAGES - 1) * TILE_K;
        if (now < 0) continue;
        __pipeline_wait_prior(STAGES - 1);
        __syncthreads();
        const half *mine_a = tile_a[now / TILE_K % STAGES] + y * ROW_A, *mine_b = tile_b[now / TILE_K % STAGES] + x;
#pragma unroll
        for (int k = 0; k < TILE_K; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left[WARP_Y / 16];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right[WARP_X / 16];
#pragma unroll
            for (int i = 0; i < WARP_Y / 16; i++) wmma::load_matrix_sync(left[i], mine_a + 16 * i * ROW_A + k, ROW_A);
#pragma unroll
            for (int j = 0; j < WARP_X / 16; j++) wmma::load_matrix_sync(right[j], mine_b + k * ROW_B + 16 * j, ROW_B);
#pragma unroll
            for (int i = 0; i < WARP_Y / 16; i++)
#pragma unroll
                for (int j = 0; j < WARP_X / 16; j++) wmma::mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
        }
        __syncthreads();
    }
    float *to = c + ((size_t)blockIdx.y * TILE_Y + y) * N + blockIdx.x * TILE_X + x;
#pragma unroll
    for (int i = 0; i < WARP_Y / 16; i++)
#pragma unroll
        for (int j = 0; j < WARP_X / 16; j++)
            wmma::store_matrix_sync(to + (size_t)16 * i * N + 16 * j, sums[i][j], N, wmma::mem_row_major);
}
