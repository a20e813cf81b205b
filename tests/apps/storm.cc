#include "tests/apps/storm.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace gcr::apps {
namespace {

constexpr std::size_t kMostLive = 64;
/// Sizes are uniform over the powers of two up to 4 MiB: 21 of 22 are below 2 MiB.
constexpr unsigned kSizeBits = 22;

bool succeeded(CUresult result, const char* call, std::string* failure) {
  if (result != CUDA_SUCCESS) *failure = std::string(call) + " failed: " + std::to_string(result);
  return result == CUDA_SUCCESS;
}

void take_a_while(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

}  // namespace

Storm::Storm(const StormDriver& driver, CUcontext context, std::size_t threads, StormMemory memory)
    : driver_(driver), context_(context), memory_(memory), workers_(threads) {
  for (std::size_t i = 0; i < threads; ++i) workers_[i].random.seed(i + 1);
}

void Storm::round(std::uint64_t steps) {
  std::vector<std::thread> threads;
  for (Worker& worker : workers_) {
    threads.emplace_back([this, &worker, steps] { run(worker, steps); });
  }
  for (std::thread& thread : threads) thread.join();
}

bool Storm::start(Worker& worker) const {
  if (!succeeded(driver_.set_current(context_), "cuCtxSetCurrent", &worker.failure)) return false;
  if (memory_ == StormMemory::kPlain || worker.streams[0] != nullptr) return true;
  for (CUstream& stream : worker.streams) {
    if (!succeeded(driver_.create_stream(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate",
                   &worker.failure)) {
      return false;
    }
  }
  return true;
}

void Storm::run(Worker& worker, std::uint64_t steps) const {
  if (!start(worker)) return;
  for (std::uint64_t i = 0; i < steps && worker.failure.empty(); ++i) {
    const bool more = worker.live.size() < kMostLive && worker.random() % 64 >= worker.live.size();
    more || worker.live.empty() ? allocate(worker) : check_and_free(worker);
  }
}

void Storm::allocate(Worker& worker) const {
  const std::size_t most = std::size_t{1} << (1 + worker.random() % kSizeBits);
  Buffer buffer{0, 1 + worker.random() % most, static_cast<unsigned char>(worker.random()),
                worker.streams[worker.random() % 2]};
  const bool plain = memory_ == StormMemory::kPlain;
  if (!succeeded(plain ? driver_.allocate(&buffer.address, buffer.bytes)
                       : driver_.allocate_async(&buffer.address, buffer.bytes, buffer.stream),
                 "allocating", &worker.failure)) {
    return;
  }
  worker.live.push_back(buffer);
  ++worker.allocations;
  succeeded(plain ? driver_.fill(buffer.address, buffer.value, buffer.bytes)
                  : driver_.fill_async(buffer.address, buffer.value, buffer.bytes, buffer.stream),
            "filling", &worker.failure);
}

/// In the order of either stream, after slow work that overwrites the content: the next owner of
/// the memory must not see it.
void Storm::free(Worker& worker, const Buffer& buffer) const {
  if (memory_ == StormMemory::kPlain) {
    succeeded(driver_.free(buffer.address), "cuMemFree", &worker.failure);
    return;
  }
  const CUstream stream = worker.streams[worker.random() % 2];
  const auto overwritten = static_cast<unsigned char>(~buffer.value);
  if (worker.random() % 8 == 0 && !succeeded(driver_.launch_host(stream, take_a_while, nullptr),
                                             "cuLaunchHostFunc", &worker.failure)) {
    return;
  }
  if (succeeded(driver_.fill_async(buffer.address, overwritten, buffer.bytes, stream),
                "overwriting", &worker.failure)) {
    succeeded(driver_.free_async(buffer.address, stream), "cuMemFreeAsync", &worker.failure);
  }
}

void Storm::check_and_free(Worker& worker) const {
  std::swap(worker.live[worker.random() % worker.live.size()], worker.live.back());
  const Buffer buffer = worker.live.back();
  worker.live.pop_back();
  worker.content.resize(buffer.bytes);
  if (memory_ == StormMemory::kStreamOrdered &&
      !succeeded(driver_.synchronize_stream(buffer.stream), "cuStreamSynchronize",
                 &worker.failure)) {
    return;
  }
  if (!succeeded(driver_.copy_to_host(worker.content.data(), buffer.address, buffer.bytes),
                 "cuMemcpyDtoH", &worker.failure)) {
    return;
  }
  const unsigned char* content = worker.content.data();
  if (content[0] != buffer.value || std::memcmp(content, content + 1, buffer.bytes - 1) != 0) {
    worker.failure = "an allocation of " + std::to_string(buffer.bytes) + " bytes is not full of " +
                     std::to_string(buffer.value);
  }
  worker.checksum = (worker.checksum ^ buffer.bytes ^ buffer.value) * 0x9e3779b97f4a7c15;
  free(worker, buffer);
}

void Storm::finish() {
  for (Worker& worker : workers_) {
    while (!worker.live.empty() && worker.failure.empty()) check_and_free(worker);
  }
}

std::uint64_t Storm::allocations() const {
  std::uint64_t sum = 0;
  for (const Worker& worker : workers_) sum += worker.allocations;
  return sum;
}

std::uint64_t Storm::checksum() const {
  std::uint64_t sum = 0;
  for (const Worker& worker : workers_) sum += worker.checksum;
  return sum;
}

std::string Storm::failure() const {
  for (const Worker& worker : workers_) {
    if (!worker.failure.empty()) return worker.failure;
  }
  return {};
}

}  // namespace gcr::apps
