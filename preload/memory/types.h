// Types for GPU memory that belong to neither CUDA nor HIP. Each runtime's face (preload/cuda,
// preload/hip) converts its own types to these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

namespace gcr::preload {

inline constexpr int kMaxDevices = 64;

/// An address in the address space that GPUs and the process share.
using Address = unsigned long long;

/// A driver's handle for physical memory; 0 is none.
using Handle = unsigned long long;

// Opaque objects of the driver. HIP contexts are its devices.
struct Context;
struct Stream;
struct Event;
struct PoolHandle;

/// In both runtimes, default streams have these handles, and null.
inline Stream* const kLegacyStream = reinterpret_cast<Stream*>(0x1);
inline Stream* const kPerThreadStream = reinterpret_cast<Stream*>(0x2);

/// Results of drivers, with the numbers that both runtimes share. Other numbers pass through
/// unchanged.
enum class Result : unsigned {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
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

/// The number of a result, for the log.
inline unsigned number(Result result) { return static_cast<unsigned>(result); }

/// Bit for the handle type "file descriptor", among the types by which memory may be exported.
inline constexpr unsigned kFileDescriptor = 1;

/// The properties of memory that the application requested.
struct Asked {
  bool trackable = false;     ///< a descriptor can own it, and it has no special properties
  int device = -1;            ///< -1: on no device, or on an unknown one
  int host_node = -1;         ///< the NUMA node of host memory; -1: on a device
  unsigned handle_types = 0;  ///< types by which the application may export it
  /// The application's original structure. Only the face reads it.
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

/// Access rights of a location to mapped memory.
enum class Rights : unsigned { kNone = 0, kRead = 1, kReadWrite = 3 };

struct Access {
  static constexpr int kDevice = 1;

  int location_type = kDevice;  ///< other values are known only to the face
  int id = 0;                   ///< the ordinal of a device
  Rights rights = Rights::kNone;
};

struct DeviceUuid {
  char bytes[16];
};

/// Facts about a device that backing an allocation needs.
struct DeviceFacts {
  bool asked = false;
  bool can_back = false;
  bool rdma_capable = false;
  std::size_t granularity_bytes = 0;
  std::size_t pitch_alignment_bytes = 0;  ///< 0 until the first pitched allocation
  DeviceUuid uuid{};  ///< of the GPU that the ordinal means now; a migration changes it
};

/// The attributes of a pool that determine its behaviour.
struct PoolBehaviour {
  std::uint64_t threshold_bytes = 0;
  bool opportunistic = false;
  bool internal_dependencies = false;
};

/// Attributes of pools that the library implements too.
enum class PoolAttribute : int {
  kReuseAllowOpportunistic = 2,
  kReuseAllowInternalDependencies = 3,
  kReleaseThreshold = 4,
  kReservedCurrent = 5,
  kReservedHigh = 6,
  kUsedCurrent = 7,
  kUsedHigh = 8,
};

/// A reference to a function, valid during a call. Does not allocate. Converts the answer: a
/// driver's result becomes a Result.
template <class Signature>
class FunctionRef;
template <class Answer, class... Arguments>
class FunctionRef<Answer(Arguments...)> {
 public:
  template <class Function>
  FunctionRef(const Function& function)  // NOLINT(google-explicit-constructor): converts implicitly
      : object_(std::addressof(function)),
        call_([](const void* object, Arguments... arguments) -> Answer {
          return static_cast<Answer>((*static_cast<const Function*>(object))(arguments...));
        }) {}
  Answer operator()(Arguments... arguments) const { return call_(object_, arguments...); }

 private:
  const void* object_;
  Answer (*call_)(const void*, Arguments...);
};

/// The application's unchanged call to the driver.
using RealCall = FunctionRef<Result()>;

}  // namespace gcr::preload
