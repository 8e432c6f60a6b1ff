/* Parts of a network that ONNX Runtime runs, which TVM's code calls as functions by their number. */
#ifndef TUNERY_SEGMENTS_H
#define TUNERY_SEGMENTS_H

#include <stddef.h>

typedef struct tunery_segments tunery_segments;

/* Open the models that lie one behind the other in a file. Returns NULL, and a sentence in `why`, where that fails. */
tunery_segments *tunery_segments_open(const char *path, const size_t *bytes, int count, int threads, char *why,
                                      size_t most);

/* Serve the calls that this thread's code makes from now on; returns what served them before. */
tunery_segments *tunery_segments_serve(tunery_segments *segments);

void tunery_segments_close(tunery_segments *segments);

#endif
