/* See segments.h. ONNX Runtime's library is loaded by name, for networks that need it. */
#define _GNU_SOURCE
#include "runtime.h"
#include "segments.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libonnxruntime.so.1"
#define FUNCTION "tunery.segment.%d"
enum { API = 16, SILENT = 4, MOST_VALUES = 512, MOST_RANK = 16, DEFAULT_MEMORY = 0, ARENA = 1, ALIGNMENT = 64 };

typedef struct status status;
typedef struct env env;
typedef struct options options;
typedef struct session session;
typedef struct value value;
typedef struct memory memory;
typedef struct allocator allocator;
typedef struct info info;

/* OrtApi of onnxruntime_c_api.h, to which functions are only ever added at the end: those that are used here. */
typedef struct {
  void *first[2];
  const char *(*GetErrorMessage)(const status *);
  status *(*CreateEnv)(int level, const char *name, env **);
  void *after_env[4];
  status *(*CreateSessionFromArray)(const env *, const void *model, size_t bytes, const options *, session **);
  status *(*Run)(session *, const void *, const char *const *inputs, const value *const *given, size_t count,
                 const char *const *outputs, size_t wanted, value **made);
  status *(*CreateSessionOptions)(options **);
  void *after_options[11];
  status *(*SetSessionLogSeverityLevel)(options *, int level);
  void *after_level[1];
  status *(*SetIntraOpNumThreads)(options *, int threads);
  status *(*SetInterOpNumThreads)(options *, int threads);
  void *after_threads[4];
  status *(*SessionGetInputCount)(const session *, size_t *);
  status *(*SessionGetOutputCount)(const session *, size_t *);
  void *after_count[4];
  status *(*SessionGetInputName)(const session *, size_t number, allocator *, char **);
  status *(*SessionGetOutputName)(const session *, size_t number, allocator *, char **);
  void *after_name[11];
  status *(*CreateTensorWithDataAsOrtValue)(const memory *, void *, size_t bytes, const int64_t *shape, size_t rank,
                                            int type, value **);
  void *after_tensor[1];
  status *(*GetTensorMutableData)(value *, void **);
  void *after_data[8];
  status *(*GetTensorElementType)(const info *, int *);
  status *(*GetDimensionsCount)(const info *, size_t *);
  status *(*GetDimensions)(const info *, int64_t *, size_t);
  void *after_dimensions[2];
  status *(*GetTensorTypeAndShape)(const value *, info **);
  void *after_shape[3];
  status *(*CreateCpuMemoryInfo)(int allocator, int type, memory **);
  void *after_memory[6];
  status *(*AllocatorFree)(allocator *, void *);
  void *after_free[1];
  status *(*GetAllocatorWithDefaultOptions)(allocator **);
  void *after_allocator[14];
  void (*ReleaseStatus)(status *);
  void (*ReleaseMemoryInfo)(memory *);
  void (*ReleaseSession)(session *);
  void (*ReleaseValue)(value *);
  void *after_value[2];
  void (*ReleaseTensorTypeAndShapeInfo)(info *);
  void (*ReleaseSessionOptions)(options *);
  void *after_release[29];
  status *(*AddSessionConfigEntry)(options *, const char *key, const char *text);
} api;

/* Their places, as the header's own assertions and order have them. */
_Static_assert(offsetof(api, SessionGetInputCount) == 30 * sizeof(void *), "");
_Static_assert(offsetof(api, CreateTensorWithDataAsOrtValue) == 49 * sizeof(void *), "");
_Static_assert(offsetof(api, CreateCpuMemoryInfo) == 69 * sizeof(void *), "");
_Static_assert(offsetof(api, ReleaseStatus) == 93 * sizeof(void *), "");
_Static_assert(offsetof(api, ReleaseSessionOptions) == 100 * sizeof(void *), "");
_Static_assert(offsetof(api, AddSessionConfigEntry) == 130 * sizeof(void *), "");

typedef struct {
  const api *(*GetApi)(uint32_t version);
} api_base;

typedef struct {
  session *session;
  size_t inputs, outputs;
  char *name[MOST_VALUES]; /* of inputs, then of outputs */
} segment;

struct tunery_segments {
  int count;
  segment *segment;
};

static const api *ort;
static env *environment;
static memory *cpu;
static allocator *names;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int registered;
static _Thread_local tunery_segments *serving;

/* Whether a call of ONNX Runtime's has failed, and why. */
static int failed(status *made, char *why, size_t most) {
  if (!made) return 0;
  snprintf(why, most, "ONNX Runtime: %s", ort->GetErrorMessage(made));
  ort->ReleaseStatus(made);
  return 1;
}

static int load_onnxruntime(char *why, size_t most) {
  if (cpu) return 0;
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  const api_base *(*base)(void) = NULL;
  if (library) *(void **)&base = dlsym(library, "OrtGetApiBase");
  ort = base ? base()->GetApi(API) : NULL;
  if (!ort) {
    snprintf(why, most, "ONNX Runtime, which runs parts of this network, cannot be loaded; copy the whole bundle");
    return -1;
  }
  return failed(ort->CreateEnv(SILENT, "tunery", &environment), why, most) ||
         failed(ort->GetAllocatorWithDefaultOptions(&names), why, most) ||
         failed(ort->CreateCpuMemoryInfo(ARENA, DEFAULT_MEMORY, &cpu), why, most);
}

/* ONNX's number of an element type; 0 where it has none. */
static int type_of(DLDataType type) {
  static const struct {
    uint8_t code, bits;
    int type;
  } known[] = {{kDLFloat, 32, 1}, {kDLUInt, 8, 2},  {kDLInt, 8, 3},   {kDLUInt, 16, 4},   {kDLInt, 16, 5},
               {kDLInt, 32, 6},   {kDLInt, 64, 7},  {kDLBool, 8, 9},  {kDLUInt, 1, 9},    {kDLFloat, 16, 10},
               {kDLFloat, 64, 11}, {kDLUInt, 32, 12}, {kDLUInt, 64, 13}, {kDLBfloat, 16, 16}};
  for (size_t at = 0; at < sizeof known / sizeof *known; ++at)
    if (known[at].code == type.code && known[at].bits == type.bits && type.lanes == 1) return known[at].type;
  return 0;
}

static DLDataType dtype_of(int type) {
  static const DLDataType known[] = {
      {0, 0, 0},          {kDLFloat, 32, 1}, {kDLUInt, 8, 1},   {kDLInt, 8, 1},   {kDLUInt, 16, 1}, {kDLInt, 16, 1},
      {kDLInt, 32, 1},    {kDLInt, 64, 1},   {0, 0, 0},         {kDLBool, 8, 1},  {kDLFloat, 16, 1},
      {kDLFloat, 64, 1},  {kDLUInt, 32, 1},  {kDLUInt, 64, 1},  {0, 0, 0},        {0, 0, 0},        {kDLBfloat, 16, 1}};
  return known[type > 0 && type < (int)(sizeof known / sizeof *known) ? type : 0];
}

static const DLTensor *tensor_of(const TVMFFIAny *argument) {
  if (argument->type_index == kTVMFFITensor) return (const DLTensor *)((char *)argument->v_obj + sizeof(TVMFFIObject));
  return argument->type_index == kTVMFFIDLTensorPtr ? (const DLTensor *)argument->v_ptr : NULL;
}

/* ONNX Runtime's value of a tensor, in its memory. */
static int value_at(const TVMFFIAny *argument, value **made, char *why, size_t most) {
  const DLTensor *tensor = tensor_of(argument);
  int type = tensor ? type_of(tensor->dtype) : 0;
  if (!type) {
    snprintf(why, most, "a part of the network that ONNX Runtime runs has a type that it does not know");
    return -1;
  }
  size_t bytes = (size_t)(tensor->dtype.bits + 7) / 8;
  for (int at = 0; at < tensor->ndim; ++at) bytes *= (size_t)tensor->shape[at];
  return failed(ort->CreateTensorWithDataAsOrtValue(cpu, (char *)tensor->data + tensor->byte_offset, bytes,
                                                    tensor->shape, (size_t)tensor->ndim, type, made),
                why, most);
}

typedef struct {
  DLManagedTensor managed;
  int64_t shape[MOST_RANK];
  void *data;
} copied;

static void forget(DLManagedTensor *managed) {
  copied *made = (copied *)managed->manager_ctx;
  free(made->data);
  free(made);
}

/* A tensor of TVM's with the values of ONNX Runtime's. */
static int tensor_from(value *source, TVMFFIAny *result, char *why, size_t most) {
  info *described = NULL;
  size_t rank = 0;
  int type = 0;
  void *data = NULL;
  TVMFFIObjectHandle tensor = NULL;
  copied *made = calloc(1, sizeof *made);
  if (!made) return snprintf(why, most, "there is no memory for the network's values"), -1;
  int wrong = failed(ort->GetTensorTypeAndShape(source, &described), why, most) ||
              failed(ort->GetTensorElementType(described, &type), why, most) ||
              failed(ort->GetDimensionsCount(described, &rank), why, most);
  if (!wrong && rank > MOST_RANK) wrong = snprintf(why, most, "a value has more than %d dimensions", MOST_RANK);
  wrong = wrong || failed(ort->GetDimensions(described, made->shape, rank), why, most) ||
          failed(ort->GetTensorMutableData(source, &data), why, most);
  if (described) ort->ReleaseTensorTypeAndShapeInfo(described);
  size_t bytes = (size_t)(dtype_of(type).bits + 7) / 8;
  for (size_t at = 0; !wrong && at < rank; ++at) bytes *= (size_t)made->shape[at];
  if (!wrong && !(made->data = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT)))
    wrong = snprintf(why, most, "there is no memory for the network's values");
  if (wrong) return free(made), -1;
  if (bytes) memcpy(made->data, data, bytes);
  made->managed.dl_tensor.data = made->data;
  made->managed.dl_tensor.device.device_type = kDLCPU;
  made->managed.dl_tensor.ndim = (int32_t)rank;
  made->managed.dl_tensor.dtype = dtype_of(type);
  made->managed.dl_tensor.shape = made->shape;
  made->managed.manager_ctx = made;
  made->managed.deleter = forget;
  if (tunery_tvm.TVMFFITensorFromDLPack(&made->managed, ALIGNMENT, 1, &tensor)) return forget(&made->managed), -1;
  result->type_index = kTVMFFITensor;
  result->v_obj = (TVMFFIObject *)tensor;
  return 0;
}

/* What a segment of which the sizes are not known returns: a tensor, or an array of them. */
static int returned(value **made, size_t count, TVMFFIAny *result, char *why, size_t most) {
  TVMFFIAny several[MOST_VALUES];
  size_t done = 0;
  memset(several, 0, sizeof *several * count);
  while (done < count && !tensor_from(made[done], &several[done], why, most)) ++done;
  int wrong = done < count;
  if (!wrong && count == 1) return *result = several[0], 0;
  if (!wrong) {
    TVMFFIByteArray name = {"ffi.Array", 9};
    TVMFFIObjectHandle array = NULL;
    wrong = tunery_tvm.TVMFFIFunctionGetGlobal(&name, &array) || !array || tunery_tvm.TVMFFIFunctionCall(array, several, (int)count, result);
    if (array) tunery_tvm.TVMFFIObjectDecRef(array);
    if (wrong) snprintf(why, most, "TVM's runtime library is not complete; copy the whole bundle");
  }
  for (size_t at = 0; at < done; ++at) tunery_tvm.TVMFFIObjectDecRef(several[at].v_obj);
  return wrong ? -1 : 0;
}

/* Run a segment on its inputs, behind which are its outputs where the sizes of all are known. */
static int run(const segment *found, const TVMFFIAny *arguments, size_t count, TVMFFIAny *result, char *why,
               size_t most) {
  value *values[MOST_VALUES] = {NULL};
  size_t all = found->inputs + found->outputs;
  int wrong = 0;
  if (count != all && count != found->inputs)
    return snprintf(why, most, "a part of the network is called with %zu values, not %zu", count, all), -1;
  for (size_t at = 0; at < count && !wrong; ++at) wrong = value_at(&arguments[at], &values[at], why, most);
  wrong = wrong || failed(ort->Run(found->session, NULL, (const char *const *)found->name,
                                   (const value *const *)values, found->inputs,
                                   (const char *const *)found->name + found->inputs, found->outputs,
                                   values + found->inputs), why, most);
  if (!wrong && count < all) wrong = returned(values + found->inputs, found->outputs, result, why, most);
  for (size_t at = 0; at < all; ++at)
    if (values[at]) ort->ReleaseValue(values[at]);
  return wrong ? -1 : 0;
}

static int value_of(const tunery_place *place, value **made, char *why, size_t most) {
  DLDataType type = {0, 0, 0};
  TVMFFIByteArray name = {place->dtype, strlen(place->dtype)};
  if (tunery_tvm.TVMFFIDataTypeFromString(&name, &type) || !type_of(type))
    return snprintf(why, most, "ONNX Runtime has no type %.40s", place->dtype), -1;
  return failed(ort->CreateTensorWithDataAsOrtValue(cpu, place->data, place->bytes, place->shape, place->rank,
                                                    type_of(type), made), why, most);
}

int tunery_segments_run(tunery_segments *segments, const tunery_place *places, size_t inputs, size_t outputs, char *why,
                        size_t most) {
  const segment *found = &segments->segment[0];
  value *values[MOST_VALUES] = {NULL};
  int wrong = found->inputs != inputs || found->outputs != outputs;
  if (wrong) snprintf(why, most, "its model has other inputs and outputs; copy the whole bundle");
  for (size_t at = 0; !wrong && at < inputs + outputs; ++at)
    if (at < inputs || places[at].data) wrong = value_of(&places[at], &values[at], why, most);
  wrong = wrong || failed(ort->Run(found->session, NULL, (const char *const *)found->name,
                                   (const value *const *)values, inputs, (const char *const *)found->name + inputs,
                                   outputs, values + inputs), why, most);
  for (size_t at = 0; at < MOST_VALUES; ++at)
    if (values[at]) ort->ReleaseValue(values[at]);
  return wrong ? -1 : 0;
}

static int run_numbered(void *number, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  char why[600] = "it is not at work in this thread";
  intptr_t at = (intptr_t)number - 1; /* a function without a `self` gets another one */
  memset(result, 0, sizeof *result);
  if (serving && at < serving->count && !run(&serving->segment[at], arguments, (size_t)count, result, why, sizeof why))
    return 0;
  tunery_tvm.TVMFFIErrorSetRaisedFromCStr("RuntimeError", why);
  return -1;
}

static int register_functions(int count) {
  for (; registered < count; ++registered) {
    char text[32];
    TVMFFIObjectHandle made = NULL;
    TVMFFIByteArray name = {text, (size_t)snprintf(text, sizeof text, FUNCTION, registered)};
    if (tunery_tvm.TVMFFIFunctionCreate((void *)(intptr_t)(registered + 1), run_numbered, NULL, &made)) return -1;
    int wrong = tunery_tvm.TVMFFIFunctionSetGlobal(&name, made, 1);
    tunery_tvm.TVMFFIObjectDecRef(made);
    if (wrong) return -1;
  }
  return 0;
}

static int open_session(segment *made, const void *model, size_t bytes, int threads, int spinning, char *why,
                        size_t most) {
  options *how = NULL;
  if (failed(ort->CreateSessionOptions(&how), why, most)) return -1;
  /* Beside TVM's, its threads sleep between calls: those need the cores; and no model reads files. */
  int wrong = failed(ort->SetSessionLogSeverityLevel(how, SILENT), why, most) ||
              failed(ort->SetIntraOpNumThreads(how, threads), why, most) ||
              failed(ort->SetInterOpNumThreads(how, 1), why, most) ||
              failed(ort->AddSessionConfigEntry(how, "session.intra_op.allow_spinning", spinning ? "1" : "0"), why,
                     most) ||
              failed(ort->AddSessionConfigEntry(how, "session.inter_op.allow_spinning", "0"), why, most) ||
              failed(ort->AddSessionConfigEntry(how, "session.model_external_initializers_file_folder_path",
                                                "/dev/null"), why, most) ||
              failed(ort->CreateSessionFromArray(environment, model, bytes, how, &made->session), why, most) ||
              failed(ort->SessionGetInputCount(made->session, &made->inputs), why, most) ||
              failed(ort->SessionGetOutputCount(made->session, &made->outputs), why, most);
  ort->ReleaseSessionOptions(how);
  if (!wrong && made->inputs + made->outputs > MOST_VALUES)
    wrong = snprintf(why, most, "a part of the network has more than %d inputs and outputs", MOST_VALUES);
  for (size_t at = 0; !wrong && at < made->inputs; ++at)
    wrong = failed(ort->SessionGetInputName(made->session, at, names, &made->name[at]), why, most);
  for (size_t at = 0; !wrong && at < made->outputs; ++at)
    wrong = failed(ort->SessionGetOutputName(made->session, at, names, &made->name[made->inputs + at]), why, most);
  return wrong ? -1 : 0;
}

static int open_all(tunery_segments *made, FILE *file, const size_t *bytes, int threads, int spinning, char *why,
                    size_t most) {
  for (int at = 0; at < made->count; ++at) {
    void *model = malloc(bytes[at] ? bytes[at] : 1);
    int wrong = !model || fread(model, 1, bytes[at], file) != bytes[at];
    if (wrong) snprintf(why, most, "what ONNX Runtime runs is cut short; copy the whole bundle");
    wrong = wrong || open_session(&made->segment[at], model, bytes[at], threads, spinning, why, most);
    free(model);
    if (wrong) return -1;
  }
  return 0;
}

tunery_segments *tunery_segments_open(const char *path, const size_t *bytes, int count, int threads, int spinning,
                                      char *why, size_t most) {
  FILE *file = fopen(path, "re");
  tunery_segments *made = calloc(1, sizeof *made);
  int wrong = !file || !made || !(made->segment = calloc((size_t)count, sizeof *made->segment));
  if (wrong) snprintf(why, most, "cannot open %s; copy the whole bundle", path);
  if (!wrong) {
    made->count = count;
    pthread_mutex_lock(&opening);
    wrong = load_onnxruntime(why, most);
    if (!wrong && (wrong = register_functions(count))) snprintf(why, most, "TVM's runtime library is not complete");
    pthread_mutex_unlock(&opening);
    wrong = wrong || open_all(made, file, bytes, threads, spinning, why, most);
  }
  if (file) fclose(file);
  if (!wrong) return made;
  tunery_segments_close(made);
  return NULL;
}

tunery_segments *tunery_segments_serve(tunery_segments *segments) {
  tunery_segments *before = serving;
  serving = segments;
  return before;
}

void tunery_segments_close(tunery_segments *segments) {
  if (!segments) return;
  for (int at = 0; at < segments->count && segments->segment; ++at) {
    segment *one = &segments->segment[at];
    for (size_t number = 0; number < MOST_VALUES; ++number)
      if (one->name[number]) failed(ort->AllocatorFree(names, one->name[number]), (char[8]){0}, 8);
    if (one->session) ort->ReleaseSession(one->session);
  }
  free(segments->segment);
  free(segments);
}
