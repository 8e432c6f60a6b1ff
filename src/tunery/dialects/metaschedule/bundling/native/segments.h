/* Parts of a network that ONNX Runtime runs, which TVM's code calls as functions by their number; or all of it. */
#ifndef TUNERY_SEGMENTS_H
#define TUNERY_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

typedef struct tunery_segments tunery_segments;

/* Open the models that lie one behind the other in a file; `spinning` threads wait busily for the next operator. Returns
 * NULL, and a sentence in `why`, where that fails. */
tunery_segments *tunery_segments_open(const char *path, const size_t *bytes, int count, int threads, int spinning,
                                      char *why, size_t most);

/* Where an input is read, or an output is written; NULL for an output that nobody wants. */
typedef struct {
  void *data;
  const int64_t *shape;
  size_t rank, bytes;
  const char *dtype;
} tunery_place;

/* Run the only model, whole, on its inputs, behind which are its outputs. */
int tunery_segments_run(tunery_segments *segments, const tunery_place *places, size_t inputs, size_t outputs, char *why,
                        size_t most);

/* Serve the calls that this thread's code makes from now on; returns what served them before. */
tunery_segments *tunery_segments_serve(tunery_segments *segments);

void tunery_segments_close(tunery_segments *segments);

#endif
