// Many threads that allocate, fill, check and free GPU memory of random sizes, most of them small:
// with cuMemAlloc, or in the order of streams, where memory that a thread frees is still written
// to. Allocations and reads follow from numbers alone, so that two runs can be compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::apps {

/// The driver functions of a storm.
struct StormDriver {
  CUresult (*set_current)(CUcontext);
  CUresult (*allocate)(CUdeviceptr*, std::size_t);
  CUresult (*free)(CUdeviceptr);
  CUresult (*fill)(CUdeviceptr, unsigned char, std::size_t);
  CUresult (*copy_to_host)(void*, CUdeviceptr, std::size_t);
  CUresult (*create_stream)(CUstream*, unsigned);
  CUresult (*synchronize_stream)(CUstream);
  CUresult (*allocate_async)(CUdeviceptr*, std::size_t, CUstream);
  CUresult (*free_async)(CUdeviceptr, CUstream);
  CUresult (*fill_async)(CUdeviceptr, unsigned char, std::size_t, CUstream);
  CUresult (*launch_host)(CUstream, CUhostFn, void*);
};

enum class StormMemory { kPlain, kStreamOrdered };

class Storm {
 public:
  /// `context` has to outlive the storm's rounds.
  Storm(const StormDriver& driver, CUcontext context, std::size_t threads, StormMemory memory);

  /// Each thread makes `steps` steps: it allocates and fills, or checks and frees. Returns when all
  /// have. A thread stops at its first error.
  void round(std::uint64_t steps);
  /// Checks and frees the rest.
  void finish();

  std::uint64_t allocations() const;
  /// Over everything that was read.
  std::uint64_t checksum() const;
  /// The first error that stopped a thread; empty if there is none.
  std::string failure() const;

 private:
  struct Buffer {
    CUdeviceptr address;
    std::size_t bytes;
    unsigned char value;
    CUstream stream;  ///< that it was allocated in
  };
  struct Worker {
    CUstream streams[2] = {};
    std::mt19937_64 random;
    std::vector<Buffer> live;
    std::vector<unsigned char> content;
    std::uint64_t allocations = 0;
    std::uint64_t checksum = 0;
    std::string failure;
  };

  void run(Worker& worker, std::uint64_t steps) const;
  bool start(Worker& worker) const;
  void allocate(Worker& worker) const;
  void free(Worker& worker, const Buffer& buffer) const;
  void check_and_free(Worker& worker) const;

  StormDriver driver_;
  CUcontext context_;
  StormMemory memory_;
  std::vector<Worker> workers_;
};

}  // namespace gcr::apps
