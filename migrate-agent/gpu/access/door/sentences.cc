#include "migrate-agent/gpu/access/door/sentences.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::gpu {

std::string past_gate_in_words(const door::DoorReply& reply) {
  if ((reply.summary.blockers & door::kPastGate) == 0) return "";
  std::string words(reply.past_gate, ::strnlen(reply.past_gate, sizeof(reply.past_gate)));
  std::ranges::replace_if(
      words, [](char c) { return c < ' ' || c > '~'; }, '?');
  return words.empty() ? "it calls the driver past the gate" : words;
}

namespace {

/// "; a stream is being captured" and the like, for everything that prevents it.
std::string state_in_words(const door::DoorReply& reply) {
  const door::Summary& summary = reply.summary;
  std::string words = past_gate_in_words(reply);
  const auto add = [&](bool holds, const char* text) {
    if (holds) words += fmt::format("{}{}", words.empty() ? "" : ", ", text);
  };
  add(summary.gate_closed == 0, "the gate is open");
  add(summary.detached != 0, "its VRAM is detached");
  add((summary.blockers & door::kManagedMemory) != 0, "it uses managed memory");
  add((summary.blockers & door::kIpcExported) != 0, "it gave out IPC handles");
  add((summary.blockers & door::kIpcImported) != 0, "it has memory of another process open");
  add((summary.blockers & door::kForeignHandles) != 0, "it shares memory with other processes");
  add((summary.blockers & door::kStreamCapturing) != 0, "a stream is being captured");
  add((summary.blockers & door::kLostPools) != 0, "a memory pool is shared or on the host");
  add((summary.blockers & door::kProfiled) != 0, "a profiler has attached itself to CUDA");
  return words.empty() ? "the request does not fit its state" : words;
}

std::string on_allocation(const door::DoorReply& reply) {
  return reply.failed_id == 0 ? "" : fmt::format(" at allocation {}", reply.failed_id);
}

/// Only these: other codes have a meaning of their own here. kNotFound means that the process
/// ended.
Code code_of(int result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Code::kResourceExhausted;
    // The answers to an import for a GPU that the process did not see when it started.
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_SUPPORTED:
      return Code::kUnsupported;
    default:
      return Code::kInternal;
  }
}

/// "CUDA_ERROR_OUT_OF_MEMORY"; "CUDA error 4711" for a code without a name here.
std::string cu_result_name(int result) {
  switch (result) {
#define GCR_NAME(name) \
  case name:           \
    return #name;
    GCR_NAME(CUDA_SUCCESS)
    GCR_NAME(CUDA_ERROR_INVALID_VALUE)
    GCR_NAME(CUDA_ERROR_OUT_OF_MEMORY)
    GCR_NAME(CUDA_ERROR_NOT_INITIALIZED)
    GCR_NAME(CUDA_ERROR_DEINITIALIZED)
    GCR_NAME(CUDA_ERROR_DEVICE_UNAVAILABLE)
    GCR_NAME(CUDA_ERROR_NO_DEVICE)
    GCR_NAME(CUDA_ERROR_INVALID_DEVICE)
    GCR_NAME(CUDA_ERROR_INVALID_CONTEXT)
    GCR_NAME(CUDA_ERROR_MAP_FAILED)
    GCR_NAME(CUDA_ERROR_UNMAP_FAILED)
    GCR_NAME(CUDA_ERROR_ALREADY_MAPPED)
    GCR_NAME(CUDA_ERROR_NOT_MAPPED)
    GCR_NAME(CUDA_ERROR_ECC_UNCORRECTABLE)
    GCR_NAME(CUDA_ERROR_OPERATING_SYSTEM)
    GCR_NAME(CUDA_ERROR_INVALID_HANDLE)
    GCR_NAME(CUDA_ERROR_ILLEGAL_STATE)
    GCR_NAME(CUDA_ERROR_NOT_FOUND)
    GCR_NAME(CUDA_ERROR_NOT_READY)
    GCR_NAME(CUDA_ERROR_ILLEGAL_ADDRESS)
    GCR_NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED)
    GCR_NAME(CUDA_ERROR_ASSERT)
    GCR_NAME(CUDA_ERROR_ILLEGAL_INSTRUCTION)
    GCR_NAME(CUDA_ERROR_MISALIGNED_ADDRESS)
    GCR_NAME(CUDA_ERROR_LAUNCH_FAILED)
    GCR_NAME(CUDA_ERROR_NOT_PERMITTED)
    GCR_NAME(CUDA_ERROR_NOT_SUPPORTED)
    GCR_NAME(CUDA_ERROR_SYSTEM_NOT_READY)
    GCR_NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    GCR_NAME(CUDA_ERROR_UNKNOWN)
#undef GCR_NAME
    default:
      return fmt::format("CUDA error {}", result);
  }
}

}  // namespace

const char* obstacle_in_words(door::Obstacle obstacle) {
  switch (obstacle) {
    case door::Obstacle::kCallsInFlight:
      return "CUDA calls did not return";
    case door::Obstacle::kCapture:
      return "a stream is being captured";
    case door::Obstacle::kGpuWork:
      return "work on its GPUs did not finish";
    case door::Obstacle::kNone:
      break;
  }
  return "it took too long";
}

Error refusal(const door::DoorReply& reply, pid_t pid, const std::string& doing) {
  const std::string start = fmt::format("cannot {} of process {}", doing, pid);
  switch (reply.outcome) {
    case door::Outcome::kNotFound:
      return Error(Code::kNotFound, fmt::format("{}: no descriptor or no such allocation{}", start,
                                                on_allocation(reply)));
    case door::Outcome::kTimeout:
      return Error(Code::kTimeout, fmt::format("{}: {}", start, obstacle_in_words(reply.obstacle)));
    case door::Outcome::kDriver:
      return Error(code_of(reply.driver_result),
                   fmt::format("{}: {}{}", start, cu_result_name(reply.driver_result),
                               on_allocation(reply)));
    case door::Outcome::kBroken:
      return Error(Code::kDataLoss,
                   fmt::format("{}: {}{}; its VRAM is not mapped any more", start,
                               cu_result_name(reply.driver_result), on_allocation(reply)));
    case door::Outcome::kBadRequest:
      return Error(Code::kRefused, fmt::format("{}: {}", start, state_in_words(reply)));
    case door::Outcome::kInvalid:
    case door::Outcome::kOk:
      break;
  }
  return Error(Code::kProtocol, fmt::format("{}: the preload library answered outcome {}", start,
                                            static_cast<std::uint32_t>(reply.outcome)));
}

}  // namespace gcr::gpu
