// Shared by the table's tests: the rows as a test sees them, and the object that contains an
// address.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "tests/preload/table/fake_driver.h"

namespace gcr::preload {

enum class RowPolicy { kGated, kCopies, kTracked, kWaits, kLookup, kPassed };

struct TestRow {
  const char* symbol;
  const char* public_name;
  int since;
  RowPolicy policy;
};

inline void PrintTo(const TestRow& row, std::ostream* out) { *out << row.symbol; }

inline const std::vector<TestRow>& test_rows() {
  static const std::vector<TestRow> rows = {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  {#symbol, #public_name, since, RowPolicy::policy},
#include "preload/cuda/driver_api.def"
  };
  return rows;
}

inline const std::vector<TestRow>& hip_rows() {
  static const std::vector<TestRow> rows = {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  {#symbol, #public_name, since, RowPolicy::policy},
#include "preload/hip/hip_api.def"
  };
  return rows;
}

/// The file name of the loaded object that contains an address, or "nowhere".
inline std::string object_of(const void* address) {
  Dl_info info{};
  if (address == nullptr || dladdr(address, &info) == 0) return "nowhere";
  const char* slash = std::strrchr(info.dli_fname, '/');
  return slash == nullptr ? info.dli_fname : slash + 1;
}

inline constexpr char kTableLibrary[] = "libgcr-preload-table.so";
inline constexpr char kDriver[] = "libcuda.so.1";

/// How many lookups the library has answered with nothing, though the driver has the function.
inline unsigned withheld() {
  return reinterpret_cast<unsigned (*)()>(dlsym(RTLD_DEFAULT, "cuTestWithheld"))();
}

/// The expected result of a lookup of the row.
inline std::string home_of(const TestRow& row) {
  return row.policy == RowPolicy::kPassed ? kDriver : kTableLibrary;
}

inline void* driver_handle() { return dlopen(kDriver, RTLD_NOW); }

template <class Function>
Function fake_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(driver_handle(), name));
}

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t);
using GetProcAddressV2 = CUresult (*)(const char*, void**, int, cuuint64_t,
                                      CUdriverProcAddressQueryResult*);

/// Every version at which some row begins, and one beyond the table.
inline std::vector<int> versions_of(const char* public_name) {
  std::vector<int> versions = {1000, 13030, 13060};
  for (const TestRow& row : test_rows()) {
    if (std::strcmp(row.public_name, public_name) != 0) continue;
    versions.insert(versions.end(), {row.since - 10, row.since, row.since + 10});
  }
  return versions;
}

}  // namespace gcr::preload
