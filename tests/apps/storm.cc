#include "tests/apps/storm.h"

#include <cstring>
#include <thread>
#include <utility>

namespace gcr::apps {
namespace {

constexpr std::size_t kMostLive = 64;
/// Sizes are even over the powers of two up to 4 MiB: 21 of 22 are below 2 MiB.
constexpr unsigned kSizeBits = 22;

bool succeeded(CUresult result, const char* call, std::string* failure) {
  if (result != CUDA_SUCCESS) *failure = std::string(call) + " failed: " + std::to_string(result);
  return result == CUDA_SUCCESS;
}

}  // namespace

Storm::Storm(const StormDriver& driver, CUcontext context, std::size_t threads)
    : driver_(driver), context_(context), workers_(threads) {
  for (std::size_t i = 0; i < threads; ++i) workers_[i].random.seed(i + 1);
}

void Storm::round(std::uint64_t steps) {
  std::vector<std::thread> threads;
  for (Worker& worker : workers_) {
    threads.emplace_back([this, &worker, steps] { run(worker, steps); });
  }
  for (std::thread& thread : threads) thread.join();
}

void Storm::run(Worker& worker, std::uint64_t steps) const {
  if (!succeeded(driver_.set_current(context_), "cuCtxSetCurrent", &worker.failure)) return;
  for (std::uint64_t i = 0; i < steps && worker.failure.empty(); ++i) {
    const bool more = worker.live.size() < kMostLive && worker.random() % 64 >= worker.live.size();
    more || worker.live.empty() ? allocate(worker) : check_and_free(worker);
  }
}

void Storm::allocate(Worker& worker) const {
  const std::size_t most = std::size_t{1} << (1 + worker.random() % kSizeBits);
  Buffer buffer{0, 1 + worker.random() % most, static_cast<unsigned char>(worker.random())};
  if (!succeeded(driver_.allocate(&buffer.address, buffer.bytes), "cuMemAlloc", &worker.failure)) {
    return;
  }
  worker.live.push_back(buffer);
  ++worker.allocations;
  succeeded(driver_.fill(buffer.address, buffer.value, buffer.bytes), "cuMemsetD8",
            &worker.failure);
}

void Storm::check_and_free(Worker& worker) const {
  std::swap(worker.live[worker.random() % worker.live.size()], worker.live.back());
  const Buffer buffer = worker.live.back();
  worker.live.pop_back();
  worker.content.resize(buffer.bytes);
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
  succeeded(driver_.free(buffer.address), "cuMemFree", &worker.failure);
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
