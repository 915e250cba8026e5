/* The operators that allocate, for the programs in C++. They count as the allocator of the Rust
 * programs does. With WINDLASS_BENCH_OWN_ALLOCATOR the program has functions that count bytes. */

#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#ifdef WINDLASS_BENCH_OWN_ALLOCATOR
extern "C" void *windlass_bench_alloc(size_t bytes);
extern "C" void windlass_bench_free(void *block);
#else
/* Counts an allocation. */
extern "C" void windlass_bench_count(void);

static inline void *windlass_bench_alloc(size_t bytes) {
    windlass_bench_count();
    return malloc(bytes);
}
static inline void windlass_bench_free(void *block) { free(block); }
#endif

void *operator new(size_t bytes) {
    void *block = windlass_bench_alloc(bytes);
    if (!block) {
        throw std::bad_alloc();
    }
    return block;
}
void *operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void *block) noexcept { windlass_bench_free(block); }
void operator delete[](void *block) noexcept { windlass_bench_free(block); }
void operator delete(void *block, size_t) noexcept { windlass_bench_free(block); }
void operator delete[](void *block, size_t) noexcept { windlass_bench_free(block); }
