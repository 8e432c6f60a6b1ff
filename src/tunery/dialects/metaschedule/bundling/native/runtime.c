/* See runtime.h. */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>

tunery_functions tunery_tvm;

/* A network's code looks for TVM's functions in the whole process, so they are there for all. */
static void *loaded(const char *name) { return dlopen(name, RTLD_NOW | RTLD_GLOBAL); }

int tunery_runtime_load(char *why, size_t most) {
  void *ffi = loaded("libtvm_ffi.so"), *runtime = ffi ? loaded("libtvm_runtime.so") : NULL;
  if (!runtime) {
    const char *told = dlerror();
    snprintf(why, most, "TVM's runtime library cannot be loaded (%s); copy the whole bundle", told ? told : "missing");
    return -1;
  }
  int complete = 1;
#define TUNERY_FIND(name) complete &= (*(void **)&tunery_tvm.name = dlsym(ffi, #name)) != NULL;
  TUNERY_OF_TVM(TUNERY_FIND)
  if (complete) return 0;
  snprintf(why, most, "TVM's runtime library is not complete; copy the whole bundle");
  return -1;
}
