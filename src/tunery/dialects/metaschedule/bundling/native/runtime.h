/* TVM's runtime library, which is loaded when a network is opened: where it is missing, that is a sentence. */
#ifndef TUNERY_RUNTIME_H
#define TUNERY_RUNTIME_H

#include <stddef.h>

#include <tvm/ffi/c_api.h>

#define TUNERY_OF_TVM(X)                                                                                      \
  X(TVMFFIDataTypeFromString) X(TVMFFIErrorMoveFromRaised) X(TVMFFIErrorSetRaisedFromCStr) X(TVMFFIFunctionCall) \
  X(TVMFFIFunctionCreate) X(TVMFFIFunctionGetGlobal) X(TVMFFIFunctionSetGlobal) X(TVMFFIObjectDecRef)         \
  X(TVMFFITensorFromDLPack)
#define TUNERY_MEMBER(name) __typeof__(name) *name;

typedef struct {
  TUNERY_OF_TVM(TUNERY_MEMBER)
} tunery_functions;

/* What is called of it, once `tunery_runtime_load` has returned 0. */
extern tunery_functions tunery_tvm __attribute__((visibility("hidden")));

/* Load it, from beside this library. Returns -1, and a sentence in `why`, where that fails. */
int tunery_runtime_load(char *why, size_t most);

#endif
