/* Compiled networks of tunery from C and C++: open, bind, run, close.
 *
 * A function that fails returns NULL or -1, and tunery_error() is one sentence that says why. A network may be used by
 * any thread, and runs one call at a time. A process may fork between calls, and the child runs networks as well; those
 * of which ONNX Runtime runs parts with several threads it has to open again.
 */
#ifndef TUNERY_H
#define TUNERY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tunery_network tunery_network;

/* An input or output: a dense array in row-major order. `dtype` is NumPy's name, such as "float32". */
typedef struct {
  const char *name;
  const char *dtype;
  int32_t rank;
  const int64_t *shape;
  size_t bytes;
} tunery_tensor;

/* Open a network's directory in a bundle. `threads` 0: OMP_NUM_THREADS, else as many as it was compiled for, and at most
 * as many as affinity and control groups' quota grant this process. */
tunery_network *tunery_open(const char *directory, int threads);

/* A network may be for several shapes of its inputs, and shows one at a time, at first number 0. A shape is the sizes of
 * all inputs, one behind another. NULL where there is none of that number. */
int tunery_shapes(const tunery_network *network);
const int64_t *tunery_shape(const tunery_network *network, int number);

/* Have it take and give tensors of these sizes, `count` in all. What was bound for a shape stays bound for it. */
int tunery_set_shape(tunery_network *network, const int64_t *sizes, int count);

int tunery_inputs(const tunery_network *network);
int tunery_outputs(const tunery_network *network);

/* NULL where there is no input or output of that number. They live as long as the network. */
const tunery_tensor *tunery_input(const tunery_network *network, int number);
const tunery_tensor *tunery_output(const tunery_network *network, int number);

/* Say where an input is read or an output is written at each run; `bytes` must be the tensor's. An input at an address
 * that 64 divides is read where it is, others are copied. What is bound must live until the last run; outputs must not
 * share memory with each other. */
int tunery_bind_input(tunery_network *network, int number, const void *data, size_t bytes);
int tunery_bind_output(tunery_network *network, int number, void *data, size_t bytes);

/* Run once. All inputs must be bound; outputs that are not bound are lost. */
int tunery_run(tunery_network *network);

/* The last failure of this thread. */
const char *tunery_error(void);

void tunery_close(tunery_network *network);

#ifdef __cplusplus
}
#endif
#endif
