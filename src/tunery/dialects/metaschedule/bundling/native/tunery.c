/* See tunery.h. A network's directory holds its weights, weights.bin, and a directory for each of its parts: 0, 1, ...
 * Each is for other shapes or other processors, the best first, and holds network.txt, which says what it is, and its
 * code, network.so, or a model that ONNX Runtime runs, model.onnx. */
#define _GNU_SOURCE
#include "tunery.h"
#include "runtime.h"
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

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

enum {
  MOST_PARTS = 256, MOST_SEGMENTS = 1024, MOST_TENSORS = 4096, MOST_RANK = 16, MOST_THREADS = 4096, ALIGNMENT = 64,
  LINE = 8192, POOLED = 2, VERSION = 2, FAILED = -1, LACKING = 1
};

typedef struct {
  tunery_tensor told;
  int64_t shape[MOST_RANK];
  TVMFFIObjectHandle tensor; /* of an input: what kernels read */
  void *own;                 /* of an input: its buffer */
  void *bound;
} tensor;

/* What runs one set of shapes. */
typedef struct {
  char *directory; /* of the network */
  int number, threads, inputs, outputs, weights, sizes, ready;
  int forks; /* of this process's line, when it was loaded */
  tensor *input, *output, *weight;
  int64_t *size; /* of all inputs, one behind another */
  void *mapped;
  size_t mapped_bytes;
  TVMFFIObjectHandle library, machine, call;
  TVMFFIObjectHandle item;
  int segment_count;
  size_t segment_bytes[MOST_SEGMENTS];
  size_t model_bytes; /* of what ONNX Runtime runs whole; 0: there is code */
  size_t code_bytes;
  tunery_segments *segments;
} part;

struct tunery_network {
  int parts;
  part *part[MOST_PARTS], *_Atomic shown; /* read without the lock, too */
  pthread_mutex_t running;
};

static pthread_once_t settled = PTHREAD_ONCE_INIT;
static char missing[600]; /* why there is no TVM */
static _Atomic int forks;
static _Thread_local char failure[1024], unopened[1024]; /* why tunery_open has failed last */

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
  tunery_tvm.TVMFFIErrorMoveFromRaised(&error);
  if (!error) return fail("%s", what);
  const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((char *)error + sizeof(TVMFFIObject));
  fail("%s: %.*s", what, (int)(cell->message.size < 600 ? cell->message.size : 600), cell->message.data);
  tunery_tvm.TVMFFIObjectDecRef(error);
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
  return tunery_tvm.TVMFFIFunctionCall(function, arguments, count, result);
}

static void drop(TVMFFIAny *value) {
  if (value->type_index >= kTVMFFIStaticObjectBegin) tunery_tvm.TVMFFIObjectDecRef(value->v_obj);
}

static TVMFFIObjectHandle global(const char *name) {
  TVMFFIByteArray text = {name, strlen(name)};
  TVMFFIObjectHandle found = NULL;
  return tunery_tvm.TVMFFIFunctionGetGlobal(&text, &found) ? NULL : found;
}

/* A function of a module of TVM's; NULL if it has none. */
static TVMFFIObjectHandle member(TVMFFIObjectHandle module, const char *name) {
  TVMFFIObjectHandle get = global("ffi.ModuleGetFunction");
  TVMFFIAny result, arguments[3] = {object_of(module, kTVMFFIModule), text_of(name), number_of(0)};
  arguments[2].type_index = kTVMFFIBool, arguments[2].v_int64 = 1; /* or of one that it has imported */
  if (!get) return NULL;
  int failed = call(get, arguments, 3, &result);
  tunery_tvm.TVMFFIObjectDecRef(get);
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
  tunery_tvm.TVMFFIObjectDecRef(function);
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
  if (tunery_tvm.TVMFFIDataTypeFromString(&name, &made->dl_tensor.dtype) ||
      tunery_tvm.TVMFFITensorFromDLPack(made, ALIGNMENT, 1, &found)) {
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
  if (tunery_tvm.TVMFFIDataTypeFromString(&name, &type)) return -1;
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

#define KNOWN(feature, has) \
  if (!strcmp(name, feature)) return !(has);
#if defined(__x86_64__)
/* A bit of what the processor says of itself: of registers a, b, c and d. */
static int says(unsigned leaf, unsigned more, int which, int bit) {
  unsigned found[4] = {0};
  return __get_cpuid_count(leaf, more, &found[0], &found[1], &found[2], &found[3]) && found[which] >> bit & 1;
}
#endif

/* Whether this processor lacks instructions that code needs, by LLVM's name; not of those that are not known here.
 * Without this check they would end the process. */
static int lacks(const char *name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
#define COMPILERS(feature) KNOWN(feature, __builtin_cpu_supports(feature))
  COMPILERS("sse3") COMPILERS("ssse3") COMPILERS("sse4.1") COMPILERS("sse4.2") COMPILERS("avx") COMPILERS("avx2")
  COMPILERS("fma") COMPILERS("avx512f") COMPILERS("avx512bw") COMPILERS("avx512cd") COMPILERS("avx512dq")
  COMPILERS("avx512vl") COMPILERS("avx512ifma") COMPILERS("avx512vbmi") COMPILERS("avx512vbmi2")
  COMPILERS("avx512vnni") COMPILERS("avx512bitalg") COMPILERS("avx512vpopcntdq")
  KNOWN("f16c", says(1, 0, 2, 29)) KNOWN("avxvnni", says(7, 1, 0, 4)) KNOWN("avx512bf16", says(7, 1, 0, 5))
  KNOWN("amx-bf16", says(7, 0, 3, 22)) KNOWN("avx512fp16", says(7, 0, 3, 23)) KNOWN("amx-tile", says(7, 0, 3, 24))
  KNOWN("amx-int8", says(7, 0, 3, 25))
  return !strcmp(name, "neon") || !strcmp(name, "dotprod") || !strncmp(name, "sve", 3) || !strncmp(name, "sme", 3);
#elif defined(__aarch64__)
  unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  KNOWN("neon", first >> 1 & 1) KNOWN("fullfp16", first >> 10 & 1) KNOWN("dotprod", first >> 20 & 1)
  KNOWN("sve", first >> 22 & 1) KNOWN("sve2", second >> 1 & 1) KNOWN("i8mm", second >> 13 & 1)
  KNOWN("bf16", second >> 14 & 1) KNOWN("sme", second >> 23 & 1)
  return !strncmp(name, "sse", 3) || !strncmp(name, "avx", 3) || !strncmp(name, "amx", 3);
#else
  return 1;
#endif
}

/* The number that a file of a control group begins with, and the one behind it; 0 for none, as of "max". */
static double number_in(const char *directory, const char *name, double *second) {
  char path[4200], text[64] = "";
  double first = 0;
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "re");
  if (file && fgets(text, sizeof text, file) && sscanf(text, "%lf %lf", &first, second) < 1) first = 0;
  if (file) fclose(file);
  return first;
}

/* The least quota of a control group and of those around it, in cores; 0 for none. In a container the path may be the
 * host's, which is not to be seen there: then the mount itself is the group. */
static double quota_in(const char *mount, const char *group) {
  char path[4160];
  double least = 0;
  snprintf(path, sizeof path, "%s%s", mount, group);
  for (char *end = path + strlen(path); end; end = strlen(path) > strlen(mount) ? strrchr(path, '/') : NULL) {
    *end = 0;
    double period = 0, unused, quota = number_in(path, "cpu.max", &period);
    if (quota <= 0)
      quota = number_in(path, "cpu.cfs_quota_us", &unused), period = number_in(path, "cpu.cfs_period_us", &unused);
    if (!strstr(path, "/..") && quota > 0 && period > 0 && (least <= 0 || quota / period < least))
      least = quota / period;
  }
  return least;
}

/* The cores that affinity and quota grant, rounded down, at least one. */
static int granted_cores(void) {
  cpu_set_t usable;
  int cores = sched_getaffinity(0, sizeof usable, &usable) ? 1 : CPU_COUNT(&usable);
  char line[4096], first[4096] = "/", second[4096] = "/";
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file && fgets(line, sizeof line, file)) {
    char *rest = NULL, *controllers = strchr(line, ':');
    char *path = controllers ? strchr(++controllers, ':') : NULL;
    if (!path) continue;
    *path++ = 0, path[strcspn(path, "\n")] = 0;
    if (!*controllers) strcpy(second, path);
    for (char *name = strtok_r(controllers, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
      if (!strcmp(name, "cpu")) strcpy(first, path);
  }
  if (file) fclose(file);
  double quotas[] = {quota_in("/sys/fs/cgroup", second), quota_in("/sys/fs/cgroup/unified", second),
                     quota_in("/sys/fs/cgroup/cpu", first)};
  for (int at = 0; at < 3; ++at)
    if (quotas[at] > 0 && quotas[at] + 0.01 < cores) cores = quotas[at] < 1 ? 1 : (int)(quotas[at] + 0.01);
  return cores;
}

/* OMP_NUM_THREADS, else what the network was compiled for; at most as many as there are cores granted. */
static int own_threads(int told) {
  const char *asked = getenv("OMP_NUM_THREADS");
  int wanted = asked ? atoi(asked) : 0, most = granted_cores();
  if (wanted < 1 || wanted > MOST_THREADS) wanted = told;
  return wanted < most ? wanted : most;
}

/* Returns LACKING where this processor cannot run it. */
static int read_text(part *part, FILE *file, const char *path) {
  char line[LINE];
  int version = 0;
  if (!fgets(line, sizeof line, file) || sscanf(line, "tunery-network %d", &version) != 1)
    return fail("%s is of no network of a bundle; write one with tunery bundle FILE -o DIR", path);
  if (version != VERSION)
    return fail("%s has version %d, not %d; use the library of its own bundle", path, version, VERSION);
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *rest = strchr(line, ' ');
    if (!rest) continue;
    *rest++ = 0;
    if (!strcmp(line, "needs") && lacks(rest)) {
      fail("%s was compiled for a processor with %.40s, which this one lacks; compile it for this one", part->directory,
           rest);
      return LACKING;
    }
    if (!strcmp(line, "threads")) {
      if (!part->threads) part->threads = own_threads(atoi(rest));
    } else if (!strcmp(line, "model")) {
      if (!(part->model_bytes = strtoull(rest, NULL, 10))) break;
    } else if (!strcmp(line, "code")) {
      if (!(part->code_bytes = strtoull(rest, NULL, 10))) break;
    } else if (!strcmp(line, "segment")) {
      if (part->segment_count == MOST_SEGMENTS || !isdigit((unsigned char)*rest)) break;
      part->segment_bytes[part->segment_count++] = strtoull(rest, NULL, 10);
    } else if (!strcmp(line, "input")) {
      if (part->inputs == MOST_TENSORS || read_tensor(rest, &part->input[part->inputs++])) break;
    } else if (!strcmp(line, "output")) {
      if (part->outputs == MOST_TENSORS || read_tensor(rest, &part->output[part->outputs++])) break;
    } else if (!strcmp(line, "weight")) {
      if (part->weights == MOST_TENSORS) break;
      size_t offset = strtoull(rest, &rest, 10);
      tensor *made = &part->weight[part->weights++];
      if (*rest != ' ' || read_tensor(rest + 1, made)) break;
      if (offset % ALIGNMENT || offset > part->mapped_bytes || made->told.bytes > part->mapped_bytes - offset) break;
      made->tensor = tensor_at((char *)part->mapped + offset, made);
      if (!made->tensor) break;
    }
  }
  if (!feof(file)) return fail("%s is damaged; write the bundle again", path);
  if (part->threads < 1 || part->threads > MOST_THREADS)
    return fail("%d is no number of threads; ask for 1 or more, or 0 for the network's own", part->threads);
  return 0;
}

static int map_weights(part *part, const char *path) {
  struct stat found;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return fail("cannot open %s: %s; copy the whole bundle", path, strerror(errno));
  if (fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode)) {
    part->mapped_bytes = (size_t)found.st_size;
    if (part->mapped_bytes)
      part->mapped = mmap(NULL, part->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
  } else {
    part->mapped = MAP_FAILED;
  }
  close(descriptor);
  if (part->mapped == MAP_FAILED) {
    part->mapped = NULL;
    return fail("cannot map %s; copy the whole bundle", path);
  }
  return 0;
}

/* A library that was cut short would end the process. */
static int check_code(const part *part, const char *path) {
  struct stat found;
  if (stat(path, &found)) return fail("cannot open %s: %s; copy the whole bundle", path, strerror(errno));
  if (!S_ISREG(found.st_mode) || (size_t)found.st_size != part->code_bytes)
    return fail("%s is not what was written; copy the whole bundle", path);
  return 0;
}

static void unload(part *part) {
  TVMFFIObjectHandle *held[] = {&part->call, &part->item, &part->machine, &part->library};
  for (size_t at = 0; at < sizeof held / sizeof *held; ++at) {
    if (*held[at]) tunery_tvm.TVMFFIObjectDecRef(*held[at]);
    *held[at] = NULL;
  }
}

static int load(part *part, const char *path) {
  TVMFFIObjectHandle open_module = global("ffi.ModuleLoadFromFile");
  TVMFFIAny result, argument = text_of(path);
  if (!open_module) return fail_of_tvm("TVM's runtime library is not complete; copy the whole bundle");
  int failed = call(open_module, &argument, 1, &result);
  tunery_tvm.TVMFFIObjectDecRef(open_module);
  if (failed) return fail_of_tvm("the network's code cannot be loaded");
  part->library = result.v_obj;
  TVMFFIAny most = number_of(part->threads);
  if (call_member(part->library, "tunery_threads", &most, 1, &result)) return fail_of_tvm("its code is no network's");
  if (call_member(part->library, "vm_load_executable", NULL, 0, &result)) return fail_of_tvm("its code is no network's");
  part->machine = result.v_obj;
  TVMFFIAny device[3] = {number_of(kDLCPU), number_of(0), number_of(POOLED)};
  if (call_member(part->machine, "vm_initialization", device, 3, &result)) return fail_of_tvm("its code cannot start");
  drop(&result);
  TVMFFIAny entry = text_of("main");
  if (call_member(part->machine, "get_function_arity", &entry, 1, &result)) return fail_of_tvm("its code is no network's");
  if (result.v_int64 != part->inputs + part->weights)
    return fail("its code takes %lld inputs and weights, not %d; write the bundle again", (long long)result.v_int64,
                part->inputs + part->weights);
  int count = 3 + part->inputs + part->weights;
  TVMFFIAny *bound = calloc((size_t)count, sizeof *bound);
  if (!bound) return fail("there is no memory for the network");
  bound[0] = text_of("main"), bound[1] = text_of("bound"), bound[2] = number_of(1);
  for (int at = 0; at < part->inputs; ++at) bound[3 + at] = object_of(part->input[at].tensor, kTVMFFITensor);
  for (int at = 0; at < part->weights; ++at)
    bound[3 + part->inputs + at] = object_of(part->weight[at].tensor, kTVMFFITensor);
  failed = call_member(part->machine, "save_function", bound, count, &result);
  free(bound);
  if (failed) return fail_of_tvm("its code does not take these inputs and weights");
  drop(&result);
  part->call = member(part->machine, "bound");
  part->item = global("ffi.ArrayGetItem");
  if (!part->call || !part->item)
    return fail_of_tvm("TVM's runtime library is not complete; copy the whole bundle");
  return 0;
}

static int path_in(char *path, size_t most, const char *directory, int number, const char *name) {
  int made = number < 0 ? snprintf(path, most, "%s/%s", directory, name)
                        : snprintf(path, most, "%s/%d/%s", directory, number, name);
  return made < (int)most ? 0 : fail("the directory's name is too long");
}

/* Read what a part is; LACKING as for `read_text`. */
static int describe(part *part, FILE *file, const char *path) {
  char weights[4096];
  part->input = calloc(MOST_TENSORS, sizeof(tensor));
  part->output = calloc(MOST_TENSORS, sizeof(tensor));
  part->weight = calloc(MOST_TENSORS, sizeof(tensor));
  if (!part->directory || !part->input || !part->output || !part->weight)
    return fail("there is no memory for the network");
  if (path_in(weights, sizeof weights, part->directory, -1, "weights.bin") || map_weights(part, weights)) return FAILED;
  int state = read_text(part, file, path);
  if (state) return state;
  for (int at = 0; at < part->inputs; ++at) part->sizes += part->input[at].told.rank;
  part->size = calloc((size_t)part->sizes + 1, sizeof *part->size);
  if (!part->size) return fail("there is no memory for the network");
  int64_t *size = part->size;
  for (int at = 0; at < part->inputs; ++at)
    for (int axis = 0; axis < part->input[at].told.rank; ++axis) *size++ = part->input[at].shape[axis];
  return 0;
}

/* Load a part's code or model, when it is first used. */
static int get_ready(part *part) {
  char path[4096], why[600];
  if (part->ready) return 0;
  for (int at = 0; at < part->inputs && !part->model_bytes; ++at) {
    tensor *made = &part->input[at];
    size_t whole = (made->told.bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    if (!made->own) made->own = aligned_alloc(ALIGNMENT, whole);
    if (!made->own || (!made->tensor && !(made->tensor = tensor_at(made->own, made))))
      return fail("there is no memory for input %.80s", made->told.name);
  }
  int whole = part->model_bytes != 0;
  if (!part->segments && (whole || part->segment_count)) {
    if (path_in(path, sizeof path, part->directory, whole ? -1 : part->number, whole ? "model.onnx" : "segments.bin"))
      return FAILED;
    part->segments = tunery_segments_open(path, whole ? &part->model_bytes : part->segment_bytes,
                                          whole ? 1 : part->segment_count, part->threads, whole, why, sizeof why);
    if (!part->segments) return fail("%s", why);
  }
  if (!whole && (path_in(path, sizeof path, part->directory, part->number, "network.so") || check_code(part, path) ||
                 load(part, path))) {
    unload(part); /* what a further try would load again */
    return FAILED;
  }
  part->ready = 1, part->forks = forks;
  return 0;
}

static void close_part(part *part);

static int has_sizes(const part *part, const int64_t *sizes, int count) {
  return part->sizes == count && !memcmp(part->size, sizes, (size_t)count * sizeof *sizes);
}

static part *part_for(const tunery_network *network, const int64_t *sizes, int count) {
  for (int at = 0; at < network->parts; ++at)
    if (has_sizes(network->part[at], sizes, count)) return network->part[at];
  return NULL;
}

/* Keep of each set of shapes the first part that this processor runs. */
static int describe_all(tunery_network *network, const char *directory, int threads) {
  for (int number = 0; number < MOST_PARTS; ++number) {
    char path[4096];
    if (path_in(path, sizeof path, directory, number, "network.txt")) return FAILED;
    FILE *file = fopen(path, "re");
    if (!file && number) break;
    if (!file) return fail("cannot open %s: %s; give the directory of a network in a bundle", path, strerror(errno));
    part *made = calloc(1, sizeof *made);
    if (!made) return fclose(file), fail("there is no memory for the network");
    made->number = number, made->threads = threads, made->directory = strdup(directory);
    int state = describe(made, file, path);
    fclose(file);
    if (!state && !part_for(network, made->size, made->sizes)) network->part[network->parts++] = made;
    else close_part(made);
    if (state == FAILED) return FAILED;
  }
  return network->parts ? 0 : FAILED; /* with the sentence of the last */
}


static void forked(void) { ++forks; }

static void settle(void) {
  pthread_atfork(NULL, NULL, forked);
  tunery_runtime_load(missing, sizeof missing);
}

static tunery_network *open_network(const char *directory, int threads) {
  if (!directory || threads < 0) {
    fail("give the directory of a network in a bundle, and 0 threads or more");
    return NULL;
  }
  pthread_once(&settled, settle);
  if (*missing) {
    fail("%s", missing);
    return NULL;
  }
  tunery_network *network = calloc(1, sizeof *network);
  if (!network) {
    fail("there is no memory for the network");
    return NULL;
  }
  pthread_mutexattr_t told;
  pthread_mutexattr_init(&told);
  pthread_mutexattr_settype(&told, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&network->running, &told);
  pthread_mutexattr_destroy(&told);
  if (describe_all(network, directory, threads) || get_ready(network->part[0])) {
    tunery_close(network);
    return NULL;
  }
  network->shown = network->part[0];
  return network;
}

tunery_network *tunery_open(const char *directory, int threads) {
  tunery_network *network = open_network(directory, threads);
  snprintf(unopened, sizeof unopened, "%s", network ? "" : failure);
  return network;
}

/* Say of a call without a network why it could not be opened. */
static int fail_of_none(void) { return fail("%s", *unopened ? unopened : "there is no network; open one first"); }

int tunery_shapes(const tunery_network *network) { return network ? network->parts : 0; }

const int64_t *tunery_shape(const tunery_network *network, int number) {
  return network && number >= 0 && number < network->parts ? network->part[number]->size : NULL;
}

/* The sizes of the inputs that a network is for, as text. */
static const char *told_sizes(const tunery_network *network, char *text, size_t most) {
  size_t used = 0;
  for (int at = 0; at < network->parts && used < most; ++at)
    for (int axis = 0; axis < network->part[at]->sizes && used < most; ++axis)
      used += (size_t)snprintf(text + used, most - used, "%s%lld", axis ? "," : at ? " or " : "",
                               (long long)network->part[at]->size[axis]);
  return text;
}

/* Wait for the call of another thread; a signal's handler would wait for its own. */
static int begin(tunery_network *network) {
  return pthread_mutex_lock(&network->running)
             ? fail("the network is at work for this very thread; call it when the signal's handler is done")
             : 0;
}

int tunery_set_shape(tunery_network *network, const int64_t *sizes, int count) {
  char text[400] = "";
  if (!network) return fail_of_none();
  if (count < 0 || (!sizes && count)) return fail("give the sizes of all inputs, one behind another, and how many");
  if (begin(network)) return FAILED;
  part *found = part_for(network, sizes, count);
  int failed = found ? get_ready(found)
                     : fail("the network was not compiled for these sizes of its inputs, but for %s; compile it for "
                            "them, too (--shape)", told_sizes(network, text, sizeof text));
  if (!failed) network->shown = found;
  pthread_mutex_unlock(&network->running);
  return failed;
}

int tunery_inputs(const tunery_network *network) { return network ? network->shown->inputs : 0; }
int tunery_outputs(const tunery_network *network) { return network ? network->shown->outputs : 0; }

const tunery_tensor *tunery_input(const tunery_network *network, int number) {
  const part *shown = network ? network->shown : NULL;
  return shown && number >= 0 && number < shown->inputs ? &shown->input[number].told : NULL;
}

const tunery_tensor *tunery_output(const tunery_network *network, int number) {
  const part *shown = network ? network->shown : NULL;
  return shown && number >= 0 && number < shown->outputs ? &shown->output[number].told : NULL;
}

static int bind_tensor(tunery_network *network, const char *what, int number, void *data, size_t bytes, int is_input) {
  if (!network) return fail_of_none();
  part *part = network->shown;
  int count = is_input ? part->inputs : part->outputs;
  if (number < 0 || number >= count) return fail("there is no %s %d; the network has %d", what, number, count);
  tensor *found = is_input ? &part->input[number] : &part->output[number];
  if (!data && found->told.bytes) return fail("%s %.80s is bound to NULL", what, found->told.name);
  if (bytes != found->told.bytes)
    return fail("%s %.80s has %zu bytes, not %zu", what, found->told.name, found->told.bytes, bytes);
  if (begin(network)) return FAILED;
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

static int take_all(part *part, TVMFFIAny *result) {
  if (part->outputs == 1 && result->type_index == kTVMFFITensor) return take(&part->output[0], result);
  for (int at = 0; at < part->outputs; ++at) {
    TVMFFIAny item, arguments[2] = {*result, number_of(at)};
    if (call(part->item, arguments, 2, &item)) return fail_of_tvm("the network gives too few outputs");
    int failed = take(&part->output[at], &item);
    drop(&item);
    if (failed) return -1;
  }
  return 0;
}

static int run_model(part *part) {
  char why[600];
  tunery_place *places = calloc((size_t)(part->inputs + part->outputs) + 1, sizeof *places);
  if (!places) return fail("there is no memory for the network's values");
  for (int at = 0; at < part->inputs + part->outputs; ++at) {
    const tensor *one = at < part->inputs ? &part->input[at] : &part->output[at - part->inputs];
    places[at] = (tunery_place){one->bound, one->shape, (size_t)one->told.rank, one->told.bytes, one->told.dtype};
  }
  int failed = tunery_segments_run(part->segments, places, (size_t)part->inputs, (size_t)part->outputs, why, sizeof why);
  free(places);
  return failed ? fail("the network cannot be run: %s", why) : 0;
}

static int run_locked(part *part) {
  TVMFFIAny result;
  if (part->segments && part->threads > 1 && part->forks != forks)
    return fail("the process was forked since the network was opened, without ONNX Runtime's threads; open it again");
  for (int at = 0; at < part->inputs; ++at)
    if (!part->input[at].bound && part->input[at].told.bytes)
      return fail("input %.80s is not bound", part->input[at].told.name);
  if (part->model_bytes) return run_model(part);
  for (int at = 0; at < part->inputs; ++at) {
    tensor *input = &part->input[at];
    int aligned = (uintptr_t)input->bound % ALIGNMENT == 0;
    if (!aligned) memcpy(input->own, input->bound, input->told.bytes);
    of(input->tensor)->data = aligned ? input->bound : input->own;
  }
  tunery_segments *before = tunery_segments_serve(part->segments);
  int failed = call(part->call, NULL, 0, &result);
  tunery_segments_serve(before);
  if (failed) return fail_of_tvm("the network cannot be run");
  failed = take_all(part, &result);
  drop(&result);
  return failed;
}

int tunery_run(tunery_network *network) {
  if (!network) return fail_of_none();
  if (begin(network)) return FAILED;
  int failed = run_locked(network->shown);
  pthread_mutex_unlock(&network->running);
  return failed;
}

static void free_tensors(tensor *tensors, int count) {
  for (int at = 0; tensors && at < count; ++at) {
    if (tensors[at].tensor) tunery_tvm.TVMFFIObjectDecRef(tensors[at].tensor);
    free(tensors[at].own);
    free((void *)tensors[at].told.name);
    free((void *)tensors[at].told.dtype);
  }
  free(tensors);
}

static void close_part(part *part) {
  unload(part);
  tunery_segments_close(part->segments);
  free_tensors(part->input, part->inputs);
  free_tensors(part->output, part->outputs);
  free_tensors(part->weight, part->weights);
  if (part->mapped) munmap(part->mapped, part->mapped_bytes);
  free(part->size);
  free(part->directory);
  free(part);
}

void tunery_close(tunery_network *network) {
  if (!network) return;
  for (int at = 0; at < network->parts; ++at) close_part(network->part[at]);
  pthread_mutex_destroy(&network->running);
  free(network);
}
