// The words of GPU memory that CUDA and HIP share, in types of neither. Each runtime's face
// (preload/cuda, preload/hip) translates its own into these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

namespace gcr::preload {

inline constexpr int kMaxDevices = 64;

/// In the address space that GPUs and the process have in common.
using Address = unsigned long long;

/// A driver's name for physical memory; 0 is none.
using Handle = unsigned long long;

// The driver's objects, never looked into. HIP's contexts are its devices.
struct Context;
struct Stream;
struct Event;
struct PoolHandle;

/// Default streams have these names, and null, in both runtimes.
inline Stream* const kLegacyStream = reinterpret_cast<Stream*>(0x1);
inline Stream* const kPerThreadStream = reinterpret_cast<Stream*>(0x2);

/// What a driver answers, by the numbers that both runtimes have. Others pass through unchanged.
enum class Result : unsigned {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kInvalidContext = 201,
  kMapFailed = 205,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kContextIsDestroyed = 709,
  kHostMemoryAlreadyRegistered = 712,
  kNotSupported = 801,
  kStreamCaptureWrongThread = 908,
};

/// For the log.
inline unsigned number(Result result) { return static_cast<unsigned>(result); }

/// Bits of the kinds of handles by which memory may leave the process.
inline constexpr unsigned kFileDescriptor = 1;

/// What memory the application asked for.
struct Asked {
  bool trackable = false;     ///< a descriptor can own it, and it is nothing special
  int device = -1;            ///< that it is on; -1: on none, or on one that is not known
  int host_node = -1;         ///< of host memory, the NUMA node; -1: on a device
  unsigned handle_types = 0;  ///< by which the application may export it
  /// The application's own words. Only the face reads them.
  alignas(8) std::byte properties[32] = {};

  template <class Properties>
  void keep(const Properties& own) {
    static_assert(sizeof(own) <= sizeof(properties) && std::is_trivially_copyable_v<Properties>);
    std::memcpy(properties, &own, sizeof(own));
  }
  template <class Properties>
  Properties kept() const {
    Properties own;
    static_assert(sizeof(own) <= sizeof(properties) && std::is_trivially_copyable_v<Properties>);
    std::memcpy(&own, properties, sizeof(own));
    return own;
  }
};

/// What a location may do with mapped memory.
enum class Rights : unsigned { kNone = 0, kRead = 1, kReadWrite = 3 };

struct Access {
  static constexpr int kDevice = 1;

  int location_type = kDevice;  ///< others only the face knows
  int id = 0;                   ///< of a device, its ordinal
  Rights rights = Rights::kNone;
};

struct DeviceUuid {
  char bytes[16];
};

/// What backing an allocation on a device needs.
struct DeviceFacts {
  bool asked = false;
  bool can_back = false;
  bool rdma_capable = false;
  std::size_t granularity_bytes = 0;
  std::size_t pitch_alignment_bytes = 0;  ///< 0 until a pitched allocation asked for it
  DeviceUuid uuid{};  ///< of the GPU behind the ordinal now: a migration changes it
};

/// How a pool behaves.
struct PoolBehaviour {
  std::uint64_t threshold_bytes = 0;
  bool opportunistic = false;
  bool internal_dependencies = false;
};

/// Attributes of pools that the library keeps, too.
enum class PoolAttribute : int {
  kReuseAllowOpportunistic = 2,
  kReuseAllowInternalDependencies = 3,
  kReleaseThreshold = 4,
  kReservedCurrent = 5,
  kReservedHigh = 6,
  kUsedCurrent = 7,
  kUsedHigh = 8,
};

/// A function that is borrowed for the time of a call. Allocates nothing.
template <class Signature>
class FunctionRef;
template <class Answer, class... Arguments>
class FunctionRef<Answer(Arguments...)> {
 public:
  template <class Function>
  FunctionRef(const Function& function)  // NOLINT(google-explicit-constructor): stands in for it
      : object_(std::addressof(function)),
        call_([](const void* object, Arguments... arguments) -> Answer {
          return (*static_cast<const Function*>(object))(arguments...);
        }) {}
  Answer operator()(Arguments... arguments) const { return call_(object_, arguments...); }

 private:
  const void* object_;
  Answer (*call_)(const void*, Arguments...);
};

/// The application's call to the driver, unchanged.
using RealCall = FunctionRef<Result()>;

}  // namespace gcr::preload
