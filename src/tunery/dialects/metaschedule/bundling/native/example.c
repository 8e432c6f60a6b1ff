/* Runs a network of a bundle on ones, for each of its shapes, and prints its outputs' sums:
 *
 *     cc example.c -Iinclude -Llib -ltunery -Wl,-rpath,'$ORIGIN/lib' -o example
 *     ./example network
 *
 * It is C and C++. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tunery.h"

static int failed(void) {
  fprintf(stderr, "%s\n", tunery_error());
  return 1;
}

static int run_shape(tunery_network *network, int shape) {
  int sizes = 0;
  for (int at = 0; at < tunery_inputs(network); ++at) sizes += tunery_input(network, at)->rank;
  if (tunery_set_shape(network, tunery_shape(network, shape), sizes)) return failed();
  for (int at = 0; at < tunery_inputs(network); ++at) {
    const tunery_tensor *input = tunery_input(network, at);
    char *data = (char *)calloc(1, input->bytes + 1);
    if (!strcmp(input->dtype, "float32"))
      for (size_t i = 0; i < input->bytes / 4; ++i) ((float *)data)[i] = 1;
    printf("input %s: %s, %zu bytes\n", input->name, input->dtype, input->bytes);
    if (tunery_bind_input(network, at, data, input->bytes)) return failed();
  }
  float **made = (float **)calloc((size_t)tunery_outputs(network) + 1, sizeof *made);
  for (int at = 0; at < tunery_outputs(network); ++at) {
    const tunery_tensor *output = tunery_output(network, at);
    made[at] = (float *)malloc(output->bytes + 1);
    if (tunery_bind_output(network, at, made[at], output->bytes)) return failed();
  }
  for (int run = 0; run < 3; ++run)
    if (tunery_run(network)) return failed();
  for (int at = 0; at < tunery_outputs(network); ++at) {
    const tunery_tensor *output = tunery_output(network, at);
    double sum = 0;
    for (size_t i = 0; !strcmp(output->dtype, "float32") && i < output->bytes / 4; ++i) sum += made[at][i];
    printf("output %s: %s, sum %.6g\n", output->name, output->dtype, sum);
  }
  return 0;
}

int main(int count, char **arguments) {
  tunery_network *network = tunery_open(count > 1 ? arguments[1] : "network", 0);
  if (!network) return failed();
  for (int shape = 0; shape < tunery_shapes(network); ++shape)
    if (run_shape(network, shape)) return 1;
  tunery_close(network);
  return 0;
}
