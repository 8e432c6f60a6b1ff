"""Kernels in C for x86 that replace code in their process; each expects a function `work(x, y, count)`."""

REPLACES = """
#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
int dladdr(const void *, void *);
static void replace(void *old, void *by) {
    uintptr_t page = (uintptr_t)old & ~(uintptr_t)4095;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) _exit(3);
    unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};  // mov rax, by; jmp rax
    memcpy(jump + 2, &by, 8);
    memcpy(old, jump, sizeof jump);
}
"""
FEWER_CALLS = (
    REPLACES
    + """
void square(const float *x, float *y);
static void fewer(void **p, const long *strides, long count, long calls) {
    for (long i = 0; i < calls; i++) {
        for (long k = 0; i && k < count; k++) p[k] = (char *)p[k] + strides[k];
        if (i % 10 == 0 || i == calls - 1) work(p[0], p[1], N);
    }
}
void square(const float *x, float *y) {
    static int done;
    struct { const char *file; void *begin, *name, *at; } own;
    work(x, y, N);
    if (done++) return;
    dladdr(square, &own);
    replace(dlsym(dlopen(own.file, RTLD_NOW | RTLD_NOLOAD), "tunery" "_run"), fewer);
}"""
)
"""One that makes every tenth of the calls that are asked for, the last one among them."""
