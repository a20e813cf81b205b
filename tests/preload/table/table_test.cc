// Every row of driver_api.def, through every lookup of a driver function, with a driver that has
// all of them. The program is linked to libcuda.so.1 and runs with the table's library preloaded.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "tests/preload/table/next_library.h"
#include "tests/preload/table/table_support.h"

extern "C" {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  CUresult symbol params;
#include "preload/cuda/driver_api.def"
}

namespace gcr::preload {
namespace {

/// An argument of type T with unusual bytes, different for every position.
template <class T>
T pattern(std::size_t position) {
  static_assert(std::is_trivially_copyable_v<T>);
  // NOLINTNEXTLINE(bugprone-sizeof-expression): T may be a pointer
  std::array<unsigned char, sizeof(T)> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(17 * (position + 1) + 5 * i + 1);
  }
  T value;
  std::memcpy(&value, bytes.data(), bytes.size());
  return value;
}

/// Calls a function with patterns; returns their bytes as the fake driver keeps them.
template <class... Parameters, std::size_t... Positions>
std::vector<unsigned char> call_with_patterns(CUresult (*function)(Parameters...), CUresult* result,
                                              std::index_sequence<Positions...>) {
  std::vector<unsigned char> expected;
  [[maybe_unused]] const auto keep = [&expected](const auto& value) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the value may be a pointer
    expected.insert(expected.end(), bytes, bytes + sizeof(value));
  };
  (keep(pattern<Parameters>(Positions)), ...);
  *result = function(pattern<Parameters>(Positions)...);
  return expected;
}

using Caller = std::vector<unsigned char> (*)(void* function, CUresult* result);

template <class... Parameters>
Caller caller_of(CUresult (*)(Parameters...)) {
  return [](void* function, CUresult* result) {
    return call_with_patterns(reinterpret_cast<CUresult (*)(Parameters...)>(function), result,
                              std::index_sequence_for<Parameters...>{});
  };
}

struct Linked {
  void* address;
  Caller call;
};

const Linked& linked(const TestRow& row) {
  static const std::vector<Linked> all = {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  {reinterpret_cast<void*>(&symbol), caller_of(&symbol)},
#include "preload/cuda/driver_api.def"
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::strcmp(test_rows()[i].symbol, row.symbol) == 0) return all[i];
  }
  return all.front();
}

class EveryRow : public testing::TestWithParam<TestRow> {};

TEST_P(EveryRow, IsFoundByDlsymWithTheDriversHandle) {
  EXPECT_EQ(object_of(dlsym(driver_handle(), GetParam().symbol)), home_of(GetParam()));
}

TEST_P(EveryRow, IsFoundByDlsymInTheDefaultOrder) {
  EXPECT_EQ(object_of(dlsym(RTLD_DEFAULT, GetParam().symbol)), home_of(GetParam()));
}

TEST_P(EveryRow, IsFoundByDlsymInTheProgramsHandle) {
  EXPECT_EQ(object_of(dlsym(dlopen(nullptr, RTLD_NOW), GetParam().symbol)), home_of(GetParam()));
}

TEST_P(EveryRow, IsFoundByDlsymAfterTheProgram) {
  EXPECT_EQ(object_of(dlsym(RTLD_NEXT, GetParam().symbol)), home_of(GetParam()));
}

TEST_P(EveryRow, IsFoundByDlsymAfterALaterLibrary) {
  EXPECT_EQ(object_of(next_library_search(GetParam().symbol)), home_of(GetParam()));
}

TEST_P(EveryRow, IsReachedByDirectLinking) {
  EXPECT_EQ(object_of(linked(GetParam()).address), home_of(GetParam()));
}

TEST_P(EveryRow, IsFoundByCuGetProcAddressInEachVersion) {
  const TestRow& row = GetParam();
  const auto meant = fake_function<fake::Meant>(fake::kMeant);
  for (const int version : versions_of(row.public_name)) {
    for (const cuuint64_t flags : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << "version " << version << " flags " << flags);
      const char* symbol = meant(row.public_name, version, flags);
      void* const expected = symbol == nullptr ? nullptr : dlsym(driver_handle(), symbol);
      void* by_v2 = nullptr;
      CUdriverProcAddressQueryResult status{};
      EXPECT_EQ(cuGetProcAddress_v2(row.public_name, &by_v2, version, flags, &status),
                CUDA_SUCCESS);
      EXPECT_EQ(by_v2, expected) << object_of(by_v2);
      EXPECT_EQ(status == CU_GET_PROC_ADDRESS_SUCCESS, expected != nullptr);
      void* by_v1 = nullptr;
      cuGetProcAddress(row.public_name, &by_v1, version, flags);
      EXPECT_EQ(by_v1, expected) << object_of(by_v1);
    }
  }
}

TEST_P(EveryRow, PassesArgumentsAndResultUnchanged) {
  const TestRow& row = GetParam();
  if (row.policy == RowPolicy::kLookup) {
    void* address = nullptr;
    EXPECT_EQ(cuGetProcAddress("cuStreamQuery", &address, 13000, 0), CUDA_SUCCESS);
    EXPECT_EQ(address, dlsym(driver_handle(), "cuStreamQuery"));
    return;
  }
  const auto take_call = fake_function<fake::TakeCall>(fake::kTakeCall);
  CUresult result = CUDA_SUCCESS;
  const std::vector<unsigned char> expected = linked(row).call(linked(row).address, &result);
  const fake::Call call = *take_call();
  EXPECT_EQ(static_cast<int>(result), fake::kResult);
  ASSERT_STREQ(call.symbol, row.symbol);
  const std::vector<unsigned char> arrived(call.arguments.begin(),
                                           call.arguments.begin() + call.argument_bytes);
  EXPECT_EQ(arrived, expected);
}

TEST_P(EveryRow, IsInTheGateExactlyIfGatedOrTracked) {
  const TestRow& row = GetParam();
  if (row.policy == RowPolicy::kLookup) {
    void* address = nullptr;
    cuGetProcAddress("cuTestGateInFlight", &address, 13000, 0);
    EXPECT_EQ(address, nullptr);
    return;
  }
  CUresult result = CUDA_SUCCESS;
  linked(row).call(linked(row).address, &result);
  const fake::Call call = *fake_function<fake::TakeCall>(fake::kTakeCall)();
  const bool inside = row.policy == RowPolicy::kGated || row.policy == RowPolicy::kCopies ||
                      row.policy == RowPolicy::kTracked;
  EXPECT_EQ(call.gate_in_flight, inside ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(Table, EveryRow, testing::ValuesIn(test_rows()),
                         [](const auto& info) { return std::string(info.param.symbol); });

TEST(Lookup, ReturnsItsShimsByName) {
  void* address = nullptr;
  ASSERT_EQ(cuGetProcAddress_v2("cuGetProcAddress", &address, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuGetProcAddress_v2));
  ASSERT_EQ(cuGetProcAddress_v2("cuGetProcAddress", &address, 11030, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuGetProcAddress));
}

TEST(Lookup, ReturnsUnshimmedFunctionsOfTheDriver) {
  const auto meant = fake_function<fake::Meant>(fake::kMeant);
  for (const char* const name : {
#define GCR_NO_ROW(symbol) #symbol,
#include "preload/cuda_no_row.inc"
       }) {
    void* const exported = dlsym(driver_handle(), name);
    EXPECT_EQ(object_of(exported), kDriver) << name;
    EXPECT_EQ(next_library_search(name), exported) << name;
    void* address = nullptr;
    EXPECT_EQ(cuGetProcAddress_v2(name, &address, 13060, 0, nullptr), CUDA_SUCCESS) << name;
    EXPECT_EQ(address, dlsym(driver_handle(), meant(name, 13060, 0))) << name;
  }
}

/// cuGetProcAddress finds nothing for `name`, as in a driver without that function.
void expect_not_found(const char* name, int version) {
  const unsigned before = withheld();
  void* address = &address;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_EQ(cuGetProcAddress_v2(name, &address, version, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(address, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  address = &address;
  EXPECT_EQ(cuGetProcAddress_v2(name, &address, version, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, nullptr);
  address = &address;
  EXPECT_EQ(cuGetProcAddress(name, &address, version, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(address, nullptr);
  EXPECT_EQ(withheld() - before, 3u);
}

TEST(Lookup, WithholdsANewerInterfaceOfAKnownFunction) {
  expect_not_found("cuMemcpyBatchAsync", 13040);
  void* address = nullptr;
  ASSERT_EQ(cuGetProcAddress_v2("cuMemcpyBatchAsync", &address, 13030, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuMemcpyBatchAsync_v2));
}

TEST(Lookup, WithholdsAnUnknownFunction) {
  expect_not_found("cuNeverHeardOf", 13000);
  for (const char* const name : {"cuNeverHeardOf", "cuMemcpyBatchAsync_v9"}) {
    const unsigned before = withheld();
    EXPECT_EQ(dlsym(driver_handle(), name), nullptr);
    EXPECT_NE(std::string(dlerror()).find("libgcr-preload withholds"), std::string::npos);
    EXPECT_EQ(dlsym(RTLD_DEFAULT, name), nullptr);
    EXPECT_EQ(dlsym(dlopen(nullptr, RTLD_NOW), name), nullptr);
    EXPECT_EQ(dlsym(RTLD_NEXT, name), nullptr);
    EXPECT_EQ(next_library_search(name), nullptr);
    EXPECT_EQ(withheld() - before, 5u);
  }
}

TEST(Lookup, LeavesOtherLibrariesAlone) {
  const unsigned before = withheld();
  EXPECT_EQ(object_of(dlsym(RTLD_DEFAULT, "cuFileOfTheNextLibrary")), "libgcr-test-next.so");
  EXPECT_EQ(dlsym(driver_handle(), "cuNoSuchFunction"), nullptr);
  EXPECT_NE(std::string(dlerror()).find("undefined symbol: cuNoSuchFunction"), std::string::npos);
  EXPECT_EQ(withheld(), before);
}

}  // namespace
}  // namespace gcr::preload
