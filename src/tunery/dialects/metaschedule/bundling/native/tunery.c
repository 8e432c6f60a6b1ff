/* See tunery.h. A network's directory holds network.so, weights.bin and network.txt, which says what they are. */
#define _GNU_SOURCE
#include "tunery.h"
#include "segments.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tvm/ffi/c_api.h>

enum { MOST_SEGMENTS = 1024, MOST_TENSORS = 4096, MOST_RANK = 16, MOST_THREADS = 4096, ALIGNMENT = 64, LINE = 8192, POOLED = 2 };

typedef struct {
  tunery_tensor told;
  int64_t shape[MOST_RANK];
  TVMFFIObjectHandle tensor; /* of an input: what kernels read */
  void *own;                 /* of an input: its buffer */
  void *bound;
} tensor;

struct tunery_network {
  int threads, inputs, outputs, weights;
  tensor *input, *output, *weight;
  void *mapped;
  size_t mapped_bytes;
  TVMFFIObjectHandle library, machine, call;
  TVMFFIObjectHandle configure, item, size;
  int segment_count;
  size_t segment_bytes[MOST_SEGMENTS];
  tunery_segments *segments;
  pthread_mutex_t running;
};

/* Of TVM's runtime: 1 has this thread run kernels alone, without a pool of threads, 0 ends that. */
void limit_threads(int most) __asm__("_ZN3tvm7runtime9threading17SetMaxConcurrencyEi");

static _Thread_local char failure[1024];

const char *tunery_error(void) { return failure; }

static int fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure, sizeof failure, format, arguments);
  va_end(arguments);
  for (char *at = failure; *at; ++at)
    if (*at == '\n' || *at == '\r') *at = ' ';
  return -1;
}

/* What TVM raised, as one sentence that begins with `what`. */
static int fail_of_tvm(const char *what) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return fail("%s", what);
  const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((char *)error + sizeof(TVMFFIObject));
  fail("%s: %.*s", what, (int)(cell->message.size < 600 ? cell->message.size : 600), cell->message.data);
  TVMFFIObjectDecRef(error);
  return -1;
}

static DLTensor *of(TVMFFIObjectHandle handle) { return (DLTensor *)((char *)handle + sizeof(TVMFFIObject)); }

static TVMFFIAny number_of(int64_t value) {
  TVMFFIAny made;
  memset(&made, 0, sizeof made);
  made.type_index = kTVMFFIInt;
  made.v_int64 = value;
  return made;
}

static TVMFFIAny text_of(const char *value) {
  TVMFFIAny made;
  memset(&made, 0, sizeof made);
  made.type_index = kTVMFFIRawStr;
  made.v_c_str = value;
  return made;
}

static TVMFFIAny object_of(TVMFFIObjectHandle value, int32_t type) {
  TVMFFIAny made;
  memset(&made, 0, sizeof made);
  made.type_index = type;
  made.v_obj = (TVMFFIObject *)value;
  return made;
}

static int call(TVMFFIObjectHandle function, TVMFFIAny *arguments, int count, TVMFFIAny *result) {
  memset(result, 0, sizeof *result);
  return TVMFFIFunctionCall(function, arguments, count, result);
}

static void drop(TVMFFIAny *value) {
  if (value->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(value->v_obj);
}

static TVMFFIObjectHandle global(const char *name) {
  TVMFFIByteArray text = {name, strlen(name)};
  TVMFFIObjectHandle found = NULL;
  return TVMFFIFunctionGetGlobal(&text, &found) ? NULL : found;
}

/* A function of a module of TVM's; NULL if it has none. */
static TVMFFIObjectHandle member(TVMFFIObjectHandle module, const char *name) {
  TVMFFIObjectHandle get = global("ffi.ModuleGetFunction");
  TVMFFIAny result, arguments[3] = {object_of(module, kTVMFFIModule), text_of(name), number_of(0)};
  arguments[2].type_index = kTVMFFIBool;
  if (!get) return NULL;
  int failed = call(get, arguments, 3, &result);
  TVMFFIObjectDecRef(get);
  if (failed || result.type_index != kTVMFFIFunction) {
    if (!failed) drop(&result);
    return NULL;
  }
  return result.v_obj;
}

static int call_member(TVMFFIObjectHandle module, const char *name, TVMFFIAny *arguments, int count, TVMFFIAny *result) {
  TVMFFIObjectHandle function = member(module, name);
  if (!function) return -1;
  int failed = call(function, arguments, count, result);
  TVMFFIObjectDecRef(function);
  return failed;
}

static void forget(DLManagedTensor *self) { free(self); }

/* A tensor of TVM's at `data`, which it does not own. */
static TVMFFIObjectHandle tensor_at(void *data, const tensor *spec) {
  DLManagedTensor *made = calloc(1, sizeof *made);
  TVMFFIByteArray name = {spec->told.dtype, strlen(spec->told.dtype)};
  TVMFFIObjectHandle found = NULL;
  if (!made) return NULL;
  made->dl_tensor.data = data;
  made->dl_tensor.device.device_type = kDLCPU;
  made->dl_tensor.ndim = spec->told.rank;
  made->dl_tensor.shape = (int64_t *)spec->shape;
  made->deleter = forget;
  if (TVMFFIDataTypeFromString(&name, &made->dl_tensor.dtype) ||
      TVMFFITensorFromDLPack(made, ALIGNMENT, 1, &found)) {
    free(made);
    return NULL;
  }
  return found;
}

/* "dtype rank sizes... name" */
static int read_tensor(char *text, tensor *made) {
  char *rest = NULL, *dtype = strtok_r(text, " ", &rest), *rank = strtok_r(NULL, " ", &rest);
  if (!dtype || !rank || !isdigit((unsigned char)*rank)) return -1;
  made->told.rank = atoi(rank);
  if (made->told.rank < 0 || made->told.rank > MOST_RANK) return -1;
  DLDataType type;
  TVMFFIByteArray name = {dtype, strlen(dtype)};
  if (TVMFFIDataTypeFromString(&name, &type)) return -1;
  size_t bytes = (size_t)(type.bits + 7) / 8 * type.lanes;
  for (int at = 0; at < made->told.rank; ++at) {
    char *size = strtok_r(NULL, " ", &rest);
    if (!size || !isdigit((unsigned char)*size) || (made->shape[at] = atoll(size)) < 0) return -1;
    if (made->shape[at] && bytes > SIZE_MAX / 2 / (size_t)made->shape[at]) return -1;
    bytes *= (size_t)made->shape[at];
  }
  made->told.dtype = strdup(dtype);
  made->told.name = strdup(rest ? rest : "");
  made->told.shape = made->shape;
  made->told.bytes = bytes;
  return made->told.dtype && made->told.name ? 0 : -1;
}

/* Whether this processor lacks instructions that code needs, by LLVM's name; not of those that the compiler's library
 * cannot tell. Without this check they would end the process. */
static int lacks(const char *name) {
#if defined(__x86_64__)
#define KNOWN(feature) \
  if (!strcmp(name, feature)) return !__builtin_cpu_supports(feature);
  __builtin_cpu_init();
  KNOWN("sse3") KNOWN("ssse3") KNOWN("sse4.1") KNOWN("sse4.2") KNOWN("avx") KNOWN("avx2") KNOWN("fma")
  KNOWN("avx512f") KNOWN("avx512bw") KNOWN("avx512cd") KNOWN("avx512dq") KNOWN("avx512vl") KNOWN("avx512ifma")
  KNOWN("avx512vbmi") KNOWN("avx512vbmi2") KNOWN("avx512vnni") KNOWN("avx512bitalg") KNOWN("avx512vpopcntdq")
#undef KNOWN
  return !strcmp(name, "neon") || !strncmp(name, "sve", 3);
#else
  return !strncmp(name, "sse", 3) || !strncmp(name, "avx", 3);
#endif
}

static int usable_cores(void) {
  cpu_set_t usable;
  return sched_getaffinity(0, sizeof usable, &usable) ? 1 : CPU_COUNT(&usable);
}

/* OMP_NUM_THREADS, else what the network was compiled for; at most as many as there are cores to use. */
static int own_threads(int told) {
  const char *asked = getenv("OMP_NUM_THREADS");
  int wanted = asked ? atoi(asked) : 0, most = usable_cores();
  if (wanted < 1 || wanted > MOST_THREADS) wanted = told;
  return wanted < most ? wanted : most;
}

static int read_text(tunery_network *network, FILE *file, const char *directory) {
  char line[LINE];
  int version = 0;
  if (!fgets(line, sizeof line, file) || sscanf(line, "tunery-network %d", &version) != 1)
    return fail("%s is no network of a bundle; write one with tunery bundle FILE -o DIR", directory);
  if (version != 1) return fail("%s has version %d, not 1; use the library of its own bundle", directory, version);
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *rest = strchr(line, ' ');
    if (!rest) continue;
    *rest++ = 0;
    if (!strcmp(line, "needs") && lacks(rest))
      return fail("%s was compiled for a processor with %.40s, which this one lacks; compile it for this one",
                  directory, rest);
    if (!strcmp(line, "threads")) {
      if (!network->threads) network->threads = own_threads(atoi(rest));
    } else if (!strcmp(line, "segment")) {
      if (network->segment_count == MOST_SEGMENTS || !isdigit((unsigned char)*rest)) break;
      network->segment_bytes[network->segment_count++] = strtoull(rest, NULL, 10);
    } else if (!strcmp(line, "input") && network->inputs < MOST_TENSORS) {
      if (read_tensor(rest, &network->input[network->inputs++])) break;
    } else if (!strcmp(line, "output") && network->outputs < MOST_TENSORS) {
      if (read_tensor(rest, &network->output[network->outputs++])) break;
    } else if (!strcmp(line, "weight") && network->weights < MOST_TENSORS) {
      size_t offset = strtoull(rest, &rest, 10);
      tensor *made = &network->weight[network->weights++];
      if (*rest != ' ' || read_tensor(rest + 1, made)) break;
      if (offset % ALIGNMENT || offset > network->mapped_bytes || made->told.bytes > network->mapped_bytes - offset) break;
      made->tensor = tensor_at((char *)network->mapped + offset, made);
      if (!made->tensor) break;
    }
  }
  if (!feof(file)) return fail("%s/network.txt is damaged; write the bundle again", directory);
  if (network->threads < 1 || network->threads > MOST_THREADS)
    return fail("%d is no number of threads; ask for 1 or more, or 0 for the network's own", network->threads);
  return 0;
}

static int map_weights(tunery_network *network, const char *path) {
  struct stat found;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return fail("cannot open %s: %s; copy the whole bundle", path, strerror(errno));
  if (fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode)) {
    network->mapped_bytes = (size_t)found.st_size;
    if (network->mapped_bytes)
      network->mapped = mmap(NULL, network->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
  } else {
    network->mapped = MAP_FAILED;
  }
  close(descriptor);
  if (network->mapped == MAP_FAILED) {
    network->mapped = NULL;
    return fail("cannot map %s; copy the whole bundle", path);
  }
  return 0;
}

static int load(tunery_network *network, const char *path) {
  TVMFFIObjectHandle open_module = global("ffi.ModuleLoadFromFile");
  TVMFFIAny result, argument = text_of(path);
  if (!open_module) return fail_of_tvm("TVM's runtime library is not complete; copy the whole bundle");
  int failed = call(open_module, &argument, 1, &result);
  TVMFFIObjectDecRef(open_module);
  if (failed) return fail_of_tvm("the network's code cannot be loaded");
  network->library = result.v_obj;
  if (call_member(network->library, "vm_load_executable", NULL, 0, &result)) return fail_of_tvm("its code is no network's");
  network->machine = result.v_obj;
  TVMFFIAny device[3] = {number_of(kDLCPU), number_of(0), number_of(POOLED)};
  if (call_member(network->machine, "vm_initialization", device, 3, &result)) return fail_of_tvm("its code cannot start");
  drop(&result);
  TVMFFIAny entry = text_of("main");
  if (call_member(network->machine, "get_function_arity", &entry, 1, &result)) return fail_of_tvm("its code is no network's");
  if (result.v_int64 != network->inputs + network->weights)
    return fail("its code takes %lld inputs and weights, not %d; write the bundle again", (long long)result.v_int64,
                network->inputs + network->weights);
  int count = 3 + network->inputs + network->weights;
  TVMFFIAny *bound = calloc((size_t)count, sizeof *bound);
  if (!bound) return fail("there is no memory for the network");
  bound[0] = text_of("main"), bound[1] = text_of("bound"), bound[2] = number_of(1);
  for (int at = 0; at < network->inputs; ++at) bound[3 + at] = object_of(network->input[at].tensor, kTVMFFITensor);
  for (int at = 0; at < network->weights; ++at)
    bound[3 + network->inputs + at] = object_of(network->weight[at].tensor, kTVMFFITensor);
  failed = call_member(network->machine, "save_function", bound, count, &result);
  free(bound);
  if (failed) return fail_of_tvm("its code does not take these inputs and weights");
  drop(&result);
  network->call = member(network->machine, "bound");
  network->configure = global("runtime.config_threadpool");
  network->item = global("ffi.ArrayGetItem");
  network->size = global("ffi.ArraySize");
  if (!network->call || !network->configure || !network->item || !network->size)
    return fail_of_tvm("TVM's runtime library is not complete; copy the whole bundle");
  return 0;
}

static int open_all(tunery_network *network, const char *directory) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/weights.bin", directory) >= (int)sizeof path)
    return fail("the directory's name is too long");
  network->input = calloc(MOST_TENSORS, sizeof(tensor));
  network->output = calloc(MOST_TENSORS, sizeof(tensor));
  network->weight = calloc(MOST_TENSORS, sizeof(tensor));
  if (!network->input || !network->output || !network->weight) return fail("there is no memory for the network");
  snprintf(path, sizeof path, "%s/network.txt", directory);
  FILE *file = fopen(path, "re");
  if (!file) return fail("cannot open %s: %s; give the directory of a network in a bundle", path, strerror(errno));
  snprintf(path, sizeof path, "%s/weights.bin", directory);
  int failed = map_weights(network, path) || read_text(network, file, directory);
  fclose(file);
  if (failed) return -1;
  for (int at = 0; at < network->inputs; ++at) {
    tensor *made = &network->input[at];
    size_t whole = (made->told.bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    made->own = aligned_alloc(ALIGNMENT, whole);
    if (!made->own || !(made->tensor = tensor_at(made->own, made)))
      return fail("there is no memory for input %.80s", made->told.name);
  }
  if (network->segment_count) {
    char why[600];
    snprintf(path, sizeof path, "%s/segments.bin", directory);
    network->segments = tunery_segments_open(path, network->segment_bytes, network->segment_count, network->threads, why,
                                             sizeof why);
    if (!network->segments) return fail("%s", why);
  }
  snprintf(path, sizeof path, "%s/network.so", directory);
  return load(network, path);
}

static pthread_once_t settled = PTHREAD_ONCE_INIT;

/* TVM otherwise binds its threads to cores, whatever the process may use. */
static void settle(void) {
  char count[16];
  snprintf(count, sizeof count, "%d", usable_cores());
  setenv("TVM_BIND_THREADS", "0", 0);
  setenv("TVM_NUM_THREADS", count, 0);
  setenv("TVM_THREAD_POOL_SPIN_COUNT", "20000", 0); /* some 10 ms */
}

tunery_network *tunery_open(const char *directory, int threads) {
  if (!directory || threads < 0) {
    fail("give the directory of a network in a bundle, and 0 threads or more");
    return NULL;
  }
  pthread_once(&settled, settle);
  tunery_network *network = calloc(1, sizeof *network);
  if (!network) {
    fail("there is no memory for the network");
    return NULL;
  }
  pthread_mutex_init(&network->running, NULL);
  network->threads = threads;
  if (open_all(network, directory)) {
    tunery_close(network);
    return NULL;
  }
  return network;
}

int tunery_inputs(const tunery_network *network) { return network ? network->inputs : 0; }
int tunery_outputs(const tunery_network *network) { return network ? network->outputs : 0; }

const tunery_tensor *tunery_input(const tunery_network *network, int number) {
  return network && number >= 0 && number < network->inputs ? &network->input[number].told : NULL;
}

const tunery_tensor *tunery_output(const tunery_network *network, int number) {
  return network && number >= 0 && number < network->outputs ? &network->output[number].told : NULL;
}

static int bind_tensor(tunery_network *network, const char *what, int number, void *data, size_t bytes, int is_input) {
  if (!network) return fail("there is no network: tunery_open has failed");
  int count = is_input ? network->inputs : network->outputs;
  if (number < 0 || number >= count) return fail("there is no %s %d; the network has %d", what, number, count);
  tensor *found = is_input ? &network->input[number] : &network->output[number];
  if (!data && found->told.bytes) return fail("%s %.80s is bound to NULL", what, found->told.name);
  if (bytes != found->told.bytes)
    return fail("%s %.80s has %zu bytes, not %zu", what, found->told.name, found->told.bytes, bytes);
  pthread_mutex_lock(&network->running);
  found->bound = data;
  pthread_mutex_unlock(&network->running);
  return 0;
}

int tunery_bind_input(tunery_network *network, int number, const void *data, size_t bytes) {
  return bind_tensor(network, "input", number, (void *)data, bytes, 1);
}

int tunery_bind_output(tunery_network *network, int number, void *data, size_t bytes) {
  return bind_tensor(network, "output", number, data, bytes, 0);
}

static int take(tensor *output, TVMFFIAny *value) {
  if (value->type_index != kTVMFFITensor) return fail("output %.80s is no tensor", output->told.name);
  const DLTensor *made = of(value->v_obj);
  size_t bytes = (size_t)(made->dtype.bits + 7) / 8 * made->dtype.lanes;
  for (int at = 0; at < made->ndim; ++at) bytes *= (size_t)made->shape[at];
  if (bytes != output->told.bytes) return fail("output %.80s has another size than it should", output->told.name);
  if (output->bound) memcpy(output->bound, (const char *)made->data + made->byte_offset, bytes);
  return 0;
}

static int take_all(tunery_network *network, TVMFFIAny *result) {
  if (network->outputs == 1 && result->type_index == kTVMFFITensor) return take(&network->output[0], result);
  for (int at = 0; at < network->outputs; ++at) {
    TVMFFIAny item, arguments[2] = {*result, number_of(at)};
    if (call(network->item, arguments, 2, &item)) return fail_of_tvm("the network gives too few outputs");
    int failed = take(&network->output[at], &item);
    drop(&item);
    if (failed) return -1;
  }
  return 0;
}

static int run_locked(tunery_network *network) {
  TVMFFIAny result, threads[2] = {number_of(1), number_of(network->threads)};
  for (int at = 0; at < network->inputs; ++at) {
    tensor *input = &network->input[at];
    if (!input->bound && input->told.bytes) return fail("input %.80s is not bound", input->told.name);
    int aligned = (uintptr_t)input->bound % ALIGNMENT == 0;
    if (!aligned) memcpy(input->own, input->bound, input->told.bytes);
    of(input->tensor)->data = aligned ? input->bound : input->own;
  }
  if (network->threads > 1) {
    if (call(network->configure, threads, 2, &result)) return fail_of_tvm("the threads cannot be set");
    drop(&result);
  }
  limit_threads(network->threads == 1);
  tunery_segments *before = tunery_segments_serve(network->segments);
  int failed = call(network->call, NULL, 0, &result);
  tunery_segments_serve(before);
  limit_threads(0);
  if (failed) return fail_of_tvm("the network cannot be run");
  failed = take_all(network, &result);
  drop(&result);
  return failed;
}

int tunery_run(tunery_network *network) {
  if (!network) return fail("there is no network: tunery_open has failed");
  pthread_mutex_lock(&network->running);
  int failed = run_locked(network);
  pthread_mutex_unlock(&network->running);
  return failed;
}

static void free_tensors(tensor *tensors, int count) {
  for (int at = 0; tensors && at < count; ++at) {
    if (tensors[at].tensor) TVMFFIObjectDecRef(tensors[at].tensor);
    free(tensors[at].own);
    free((void *)tensors[at].told.name);
    free((void *)tensors[at].told.dtype);
  }
  free(tensors);
}

void tunery_close(tunery_network *network) {
  if (!network) return;
  TVMFFIObjectHandle held[] = {network->call, network->configure, network->item,
                               network->size, network->machine,   network->library};
  for (size_t at = 0; at < sizeof held / sizeof *held; ++at)
    if (held[at]) TVMFFIObjectDecRef(held[at]);
  tunery_segments_close(network->segments);
  free_tensors(network->input, network->inputs);
  free_tensors(network->output, network->outputs);
  free_tensors(network->weight, network->weights);
  if (network->mapped) munmap(network->mapped, network->mapped_bytes);
  pthread_mutex_destroy(&network->running);
  free(network);
}
