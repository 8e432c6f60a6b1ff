/* What every compiled kernel and network has beside its own code: its parallel regions, in place of TVM's, and the
 * transposition of matrices. `tools/make_support.py` turns this into support.ll, which TVM compiles for each target.
 *
 * A region's tasks are divided between its threads at its start; who has done his own takes those of others from their
 * end. So the same cores get the same part of each layer, and nobody waits for a thread that is not running: only what
 * a thread has begun is waited for. While others hold our threads up, regions run on their caller. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

typedef struct { void *sync; int32_t tasks; } group;        /* TVMParallelGroupEnv */
typedef int (*body)(int task, group *group, void *data);    /* FTVMParallelLambda */
typedef struct { int32_t type, zero; int64_t number; } any; /* TVMFFIAny */

enum {
  MOST_THREADS = 256, TASKS_EACH = 8, LEAST_TASK_NS = 2000, LEAST_WAKING_NS = 40000, APART_NS = 1000000,
  LEAST_SPIN_NS = 4000, MOST_SPIN_NS = 250000, WAIT_NS = 50000, HELD_UP_NS = 100000,
  LEAST_PAUSE_NS = 8000000, MOST_PAUSE_NS = 1000000000, CHANCE_NS = 200000000, SOON_NS = 50000000, WIPE_ON_FORK = 18
};

/* A thread's tasks that nobody has taken: the region's number, and from which on to before which. */
typedef _Atomic uint64_t range;

typedef struct {
  range tasks;
  _Atomic int asleep;
  int avoided; /* the core that it keeps off, and one; 0: none */
  sem_t ready;
  pthread_t thread;
} __attribute__((aligned(128))) worker;

typedef struct {
  _Atomic int busy, started, ending;
  int64_t ended, owed_ns, alone_until, pause_ns;
  _Atomic uint32_t number __attribute__((aligned(128))); /* of the region that there is work of */
  _Atomic int threads;
  body run;
  void *data;
  int tasks;
  _Atomic int left __attribute__((aligned(128)));
  _Atomic int failed, waiting;
  sem_t done;
  worker worker[MOST_THREADS]; /* the first is the caller */
} pool;

static pool *_Atomic shared; /* all zeros in a process that was forked */
static _Atomic int most = 1;
static _Thread_local int64_t hinted_extent, hinted_ns;

/* TVM's runtime sets it as a module is loaded. */
__attribute__((weak)) void (*__TVMFFIErrorSetRaisedFromCStr)(const char *kind, const char *message);

static inline void relax(void) { __asm__ volatile("PAUSE" ::: "memory"); }

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000 + time.tv_nsec;
}

/* A task of a thread's range: its own first, of others' the last; -1 if there is none. */
static int take(range *tasks, uint32_t number, int own) {
  uint64_t seen = atomic_load_explicit(tasks, memory_order_relaxed);
  for (;;) {
    uint32_t from = (uint32_t)seen >> 16, until = (uint32_t)seen & 0xffff;
    if (seen >> 32 != number || from >= until) return -1;
    uint64_t rest = own ? seen + 0x10000 : seen - 1;
    if (atomic_compare_exchange_weak_explicit(tasks, &seen, rest, memory_order_acq_rel, memory_order_relaxed))
      return own ? (int)from : (int)until - 1;
  }
}

static void work(pool *pool, int self, uint32_t number) {
  int threads = atomic_load_explicit(&pool->threads, memory_order_relaxed);
  for (int at = 0; at < threads; ++at) {
    int owner = self + at < threads ? self + at : self + at - threads, task;
    if (owner >= threads) return; /* of a region that is over */
    while ((task = take(&pool->worker[owner].tasks, number, owner == self)) >= 0) {
      group group = {NULL, pool->tasks};
      if (pool->run(task, &group, pool->data)) atomic_store(&pool->failed, 1);
      if (atomic_fetch_sub(&pool->left, 1) == 1 && atomic_exchange(&pool->waiting, 0)) sem_post(&pool->done);
    }
  }
}

static void *serve(void *own) {
  worker *self = own;
  pool *pool = atomic_load(&shared);
  int place = (int)(self - pool->worker);
  int64_t spin_ns = LEAST_SPIN_NS;
  uint32_t number = 0;
  while (!atomic_load(&pool->ending)) {
    int64_t start = now();
    for (int turns = 0; atomic_load_explicit(&pool->number, memory_order_acquire) == number; ++turns) {
      relax();
      if (turns % 32 || now() - start < spin_ns) continue;
      atomic_store(&self->asleep, 1);
      if (atomic_load(&pool->number) != number || atomic_load(&pool->ending)) {
        if (!atomic_exchange(&self->asleep, 0)) sem_wait(&self->ready);
        break;
      }
      while (sem_wait(&self->ready)) continue;
      int64_t slept_ns = now() - start;
      spin_ns = slept_ns < MOST_SPIN_NS ? slept_ns * 2 : spin_ns / 2;
      spin_ns = spin_ns < LEAST_SPIN_NS ? LEAST_SPIN_NS : spin_ns > MOST_SPIN_NS ? MOST_SPIN_NS : spin_ns;
      break;
    }
    number = atomic_load_explicit(&pool->number, memory_order_acquire);
    work(pool, place, number);
  }
  return NULL;
}

/* Have a thread wake up on another core than the caller's: a virtual machine's kernel takes no halted core to be idle,
 * and would put both on one, where they take turns for a millisecond. */
static void keep_off(worker *worker, int core) {
  cpu_set_t cores;
  if (core < 0 || worker->avoided == core + 1 || sched_getaffinity(0, sizeof cores, &cores)) return;
  CPU_CLR(core, &cores);
  pthread_setaffinity_np(worker->thread, sizeof cores, &cores);
  worker->avoided = core + 1;
}

static void wake(pool *pool, int threads) {
  int core = sched_getcpu();
  for (int at = 1; at < threads; ++at) {
    worker *worker = &pool->worker[at];
    if (!atomic_load(&worker->asleep)) continue;
    keep_off(worker, core);
    if (atomic_exchange(&worker->asleep, 0)) sem_post(&worker->ready);
  }
}

static void start(pool *pool, int threads) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int started = atomic_load(&pool->started);
  if (!started) sem_init(&pool->done, 0, 0), started = 1;
  for (; started < threads; ++started) {
    worker *made = &pool->worker[started];
    sem_init(&made->ready, 0, 0);
    if (pthread_create(&made->thread, NULL, serve, made)) break;
    keep_off(made, sched_getcpu());
  }
  atomic_store(&pool->started, started);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Wait for the tasks that others have begun. Where that takes longer than tasks do, another process has their core. Once
 * is chance; where it happens again soon, regions run on their caller for a while, and each time for longer. After some
 * time in which it did not happen, the while is a small part of that time. */
static void finish(pool *pool, int64_t began) {
  int64_t idle = now(), waited = 0;
  pool->ended = idle;
  for (int turns = 0; atomic_load_explicit(&pool->left, memory_order_acquire); ++turns) {
    relax();
    if (turns % 32 || now() - idle < WAIT_NS) continue;
    atomic_store(&pool->waiting, 1);
    if (atomic_load(&pool->left)) while (sem_wait(&pool->done)) continue;
    waited = now() - idle;
  }
  if (waited < HELD_UP_NS + (idle - began) * 2 * atomic_load(&pool->threads) / pool->tasks) return;
  idle += waited;
  int64_t apart_ns = idle - pool->alone_until, pause_ns = 2 * pool->pause_ns;
  if (apart_ns > pool->pause_ns + SOON_NS && pause_ns > apart_ns / 16) pause_ns = apart_ns / 16;
  if (pause_ns < LEAST_PAUSE_NS) pause_ns = LEAST_PAUSE_NS;
  if (pause_ns > MOST_PAUSE_NS) pause_ns = MOST_PAUSE_NS;
  pool->pause_ns = apart_ns > 8 * pool->pause_ns + CHANCE_NS ? 0 : pause_ns;
  pool->alone_until = idle + pool->pause_ns;
}

static int alone(body run, void *data) {
  group group = {NULL, 1};
  return run(0, &group, data);
}

/* How many tasks are worth it: none smaller than a few microseconds, and none without a turn of the loop. */
static int tasks_of(int threads, int64_t extent, int64_t ns) {
  int64_t tasks = (int64_t)threads * TASKS_EACH;
  if (ns && ns / LEAST_TASK_NS < tasks) tasks = ns / LEAST_TASK_NS;
  if (tasks < threads) tasks = threads;
  if (!extent) return (int)tasks;
  int64_t turns = (extent + tasks - 1) / tasks;
  return (int)((extent + turns - 1) / turns);
}

static int launch(body run, void *data, int asked) {
  (void)asked;
  pool *pool = atomic_load(&shared);
  int64_t extent = hinted_extent, ns = hinted_ns;
  hinted_extent = hinted_ns = 0;
  int threads = atomic_load_explicit(&most, memory_order_relaxed);
  int tasks = tasks_of(threads, extent, ns);
  if (threads > tasks) threads = tasks;
  if (threads < 2 || !pool || atomic_load(&pool->busy) || atomic_exchange(&pool->busy, 1)) return alone(run, data);
  int64_t began = now();
  if (began < pool->alone_until) {
    atomic_store(&pool->busy, 0);
    return alone(run, data);
  }
  if (atomic_load(&pool->started) < threads) start(pool, threads);
  uint32_t number = atomic_load(&pool->number) + 1;
  pool->run = run, pool->data = data, pool->tasks = tasks;
  atomic_store_explicit(&pool->threads, threads, memory_order_relaxed);
  atomic_store_explicit(&pool->left, tasks, memory_order_relaxed);
  atomic_store_explicit(&pool->failed, 0, memory_order_relaxed);
  for (int at = 0; at < threads; ++at) {
    uint64_t from = (uint64_t)(tasks * at / threads), until = (uint64_t)(tasks * (at + 1) / threads);
    atomic_store_explicit(&pool->worker[at].tasks, (uint64_t)number << 32 | from << 16 | until, memory_order_release);
  }
  atomic_store(&pool->number, number);
  pool->owed_ns = (began - pool->ended < APART_NS ? pool->owed_ns : 0) + (ns ? ns : LEAST_WAKING_NS);
  if (pool->owed_ns >= LEAST_WAKING_NS) wake(pool, threads), pool->owed_ns = 0;
  work(pool, 0, number);
  finish(pool, began);
  int failed = atomic_load(&pool->failed);
  atomic_store(&pool->busy, 0);
  if (failed && __TVMFFIErrorSetRaisedFromCStr)
    __TVMFFIErrorSetRaisedFromCStr("RuntimeError", "a task of a parallel region has failed");
  return failed ? -1 : 0;
}

/* Hidden, so that TVM's runtime does not find it, and does not set it to its own. */
__attribute__((visibility("hidden"))) int (*__TVMBackendParallelLaunch)(body, void *, int) = launch;

/* Say of the next region of this thread how many turns its loop has, and some nanoseconds that it takes one thread. */
__attribute__((visibility("hidden"))) int tunery_region(int64_t extent, int64_t ns) {
  hinted_extent = extent, hinted_ns = ns > 0 ? ns : 1;
  return 0;
}

/* End a pool's threads; the next region starts others. */
static void stop(pool *pool) {
  atomic_store(&pool->ending, 1);
  atomic_fetch_add(&pool->number, 1);
  for (int at = 1; at < atomic_load(&pool->started); ++at) {
    worker *worker = &pool->worker[at];
    if (atomic_exchange(&worker->asleep, 0)) sem_post(&worker->ready);
    pthread_join(worker->thread, NULL);
    worker->avoided = 0;
  }
  atomic_store(&pool->started, 0);
  atomic_store(&pool->ending, 0);
}

/* A function of TVM's: it takes the most threads that regions of this library have from now on; with one, others end. */
int __tvm_ffi_tunery_threads(void *self, const any *arguments, int32_t count, any *result) {
  (void)self, (void)count, (void)result;
  int64_t asked = arguments[0].number;
  atomic_store(&most, asked < 1 ? 1 : asked > MOST_THREADS ? MOST_THREADS : (int)asked);
  pool *known = atomic_load(&shared);
  if (asked < 2 && known && !atomic_exchange(&known->busy, 1)) stop(known), atomic_store(&known->busy, 0);
  if (asked < 2 || known) return 0;
  pool *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *none = NULL;
  if (made == MAP_FAILED) return 0;
  if (madvise(made, sizeof *made, WIPE_ON_FORK) || !atomic_compare_exchange_strong(&shared, &none, made))
    munmap(made, sizeof *made); /* without the former, a forked process would wait for threads that it has not */
  return 0;
}

__attribute__((destructor)) static void end(void) {
  pool *pool = atomic_load(&shared);
  if (!pool) return;
  stop(pool);
  if (!atomic_exchange(&pool->busy, 1)) munmap(pool, sizeof *pool); /* else the process ends while a thread is in it */
}

typedef float lanes __attribute__((vector_size(32), aligned(4)));

#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define EVEN(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define ODD(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define LEFT(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define RIGHT(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)

/* Eight rows of eight numbers become eight columns, in registers. */
static inline void transpose_block(float *to, int64_t to_stride, const float *from, int64_t stride) {
  lanes row[8], half[8], quarter[8];
  for (int at = 0; at < 8; ++at) row[at] = *(const lanes *)(from + at * stride);
  for (int at = 0; at < 4; ++at) half[at] = LOW(row[2 * at], row[2 * at + 1]), half[at + 4] = HIGH(row[2 * at], row[2 * at + 1]);
  for (int at = 0; at < 2; ++at) {
    quarter[4 * at] = EVEN(half[4 * at], half[4 * at + 1]), quarter[4 * at + 1] = ODD(half[4 * at], half[4 * at + 1]);
    quarter[4 * at + 2] = EVEN(half[4 * at + 2], half[4 * at + 3]);
    quarter[4 * at + 3] = ODD(half[4 * at + 2], half[4 * at + 3]);
  }
  for (int at = 0; at < 4; ++at) {
    const int place = at / 2 * 4 + at % 2;
    *(lanes *)(to + at * to_stride) = LEFT(quarter[place], quarter[place + 2]);
    *(lanes *)(to + (at + 4) * to_stride) = RIGHT(quarter[place], quarter[place + 2]);
  }
}

/* to[column * to_stride + row] = from[row * stride + column], of numbers of four bytes. */
__attribute__((visibility("hidden")))
int tunery_transpose(float *restrict to, int64_t to_stride, const float *restrict from, int64_t stride, int64_t rows,
                     int64_t columns) {
  int64_t column = 0;
  for (int64_t width; column + 8 <= columns; column += width) { /* whole lines of the cache are read at once */
    int64_t row = 0;
    width = column + 16 <= columns ? 16 : 8;
    for (; row + 8 <= rows; row += 8)
      for (int64_t at = column; at < column + width; at += 8)
        transpose_block(to + at * to_stride + row, to_stride, from + row * stride + at, stride);
    for (; row < rows; ++row)
      for (int64_t at = column; at < column + width; ++at) to[at * to_stride + row] = from[row * stride + at];
  }
  for (; column < columns; ++column)
    for (int64_t row = 0; row < rows; ++row) to[column * to_stride + row] = from[row * stride + column];
  return 0;
}
