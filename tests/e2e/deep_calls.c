// A library that calls the driver that it is linked to: CUDA's, or HIP's with GCR_DEEP_HIP.
#include <stddef.h>

typedef unsigned long long Address;

#ifdef GCR_DEEP_HIP
#define CREATE_STREAM hipStreamCreateWithFlags
#define ALLOCATE hipMalloc
#define SET hipMemsetD32Async
#define COPY hipMemcpyDtoDAsync
#define SYNCHRONIZE hipStreamSynchronize
#else
#define CREATE_STREAM cuStreamCreate
#define ALLOCATE cuMemAlloc_v2
#define SET cuMemsetD32Async
#define COPY cuMemcpyDtoDAsync_v2
#define SYNCHRONIZE cuStreamSynchronize
#endif

int CREATE_STREAM(void** stream, unsigned flags);
int ALLOCATE(Address* address, size_t bytes);
int SET(Address address, unsigned value, size_t count, void* stream);
int COPY(Address to, Address from, size_t bytes, void* stream);
int SYNCHRONIZE(void* stream);

enum { kWords = 1 << 18, kTimes = 50 };

static void* stream;
static Address own;

int deep_open(void) {
  const int result = CREATE_STREAM(&stream, 1);
  return result != 0 ? result : ALLOCATE(&own, kWords * sizeof(unsigned));
}

/// Fills its memory and copies it to `to`, with a higher value each time, the last one `first` +
/// 49.
int deep_step(Address to, unsigned first) {
  int result = 0;
  for (unsigned i = 0; i < kTimes && result == 0; ++i) {
    result = SET(own, first + i, kWords, stream);
    if (result == 0) result = COPY(to, own, kWords * sizeof(unsigned), stream);
    if (result == 0) result = SYNCHRONIZE(stream);
  }
  return result;
}
