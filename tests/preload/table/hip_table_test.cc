// Every row of hip_api.def, through every lookup of a HIP function, with a library that has all of
// them. The program is linked to libamdhip64.so.6 and runs with the tables' library preloaded.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "preload/hip/abi/hip_abi.h"
#include "tests/preload/table/next_library.h"
#include "tests/preload/table/table_support.h"

extern "C" {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  result symbol params;
#include "preload/hip/hip_api.def"
const gcr::preload::fake::Call* gcr_fake_take_call();
void gcr_fake_nest();
}

namespace gcr::preload {
namespace {

constexpr char kHip[] = "libamdhip64.so.6";

void* hip_handle() { return dlopen(kHip, RTLD_NOW); }

std::string home_of_hip(const TestRow& row) {
  return row.policy == RowPolicy::kPassed ? kHip : kTableLibrary;
}

unsigned int tracked_calls() {
  return reinterpret_cast<unsigned int (*)()>(dlsym(RTLD_DEFAULT, "hipTestTrackedCalls"))();
}

/// An argument of type T with unusual bytes, different for every position.
template <class Parameter, class T = std::remove_cvref_t<Parameter>>
T pattern(std::size_t position) {
  static_assert(std::is_trivially_copyable_v<T>);
  // NOLINTNEXTLINE(bugprone-sizeof-expression): T may be a pointer
  std::array<unsigned char, sizeof(T)> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(17 * (position + 1) + 5 * i + 1);
  }
  T value;
  std::memcpy(static_cast<void*>(&value), bytes.data(), bytes.size());
  return value;
}

template <class Answer, class... Parameters, std::size_t... Positions>
std::vector<unsigned char> call_with_patterns(Answer (*function)(Parameters...), int* result,
                                              std::index_sequence<Positions...>) {
  std::vector<unsigned char> expected;
  [[maybe_unused]] const auto keep = [&expected](const auto& value) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the value may be a pointer
    expected.insert(expected.end(), bytes, bytes + sizeof(value));
  };
  (keep(pattern<Parameters>(Positions)), ...);
  *result = fake::kResult;
  if constexpr (std::is_same_v<Answer, hipError_t>) {
    *result = function(pattern<Parameters>(Positions)...);
  } else {
    function(pattern<Parameters>(Positions)...);
  }
  return expected;
}

using Caller = std::vector<unsigned char> (*)(void* function, int* result);

template <class Answer, class... Parameters>
Caller caller_of(Answer (*)(Parameters...)) {
  return [](void* function, int* result) {
    return call_with_patterns(reinterpret_cast<Answer (*)(Parameters...)>(function), result,
                              std::index_sequence_for<Parameters...>{});
  };
}

struct Linked {
  const char* symbol;
  void* address;
  Caller call;
};

const Linked& linked(const TestRow& row) {
  static const std::vector<Linked> all = {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  {#symbol, reinterpret_cast<void*>(&symbol), caller_of(&symbol)},
#include "preload/hip/hip_api.def"
  };
  return *std::ranges::find_if(
      all, [&](const Linked& one) { return std::strcmp(one.symbol, row.symbol) == 0; });
}

class EveryHipRow : public testing::TestWithParam<TestRow> {};

TEST_P(EveryHipRow, IsFoundByDlsymFromEverywhere) {
  const char* const symbol = GetParam().symbol;
  const std::string home = home_of_hip(GetParam());
  EXPECT_EQ(object_of(dlsym(hip_handle(), symbol)), home);
  EXPECT_EQ(object_of(dlvsym(hip_handle(), symbol, "hip_4.2")), home);
  EXPECT_EQ(object_of(dlsym(RTLD_DEFAULT, symbol)), home);
  EXPECT_EQ(object_of(dlsym(dlopen(nullptr, RTLD_NOW), symbol)), home);
  EXPECT_EQ(object_of(dlsym(RTLD_NEXT, symbol)), home);
  EXPECT_EQ(object_of(next_library_search(symbol)), home);
}

TEST_P(EveryHipRow, IsReachedByDirectLinking) {
  EXPECT_EQ(object_of(linked(GetParam()).address), home_of_hip(GetParam()));
}

TEST_P(EveryHipRow, IsFoundByHipLookupsWithEachFlag) {
  const TestRow& row = GetParam();
  for (const bool thread_stream : {false, true}) {
    const std::uint64_t flags = thread_stream ? HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    const std::string spt = std::string(row.public_name) + "_spt";
    const bool is_spt = thread_stream && dlsym(hip_handle(), spt.c_str()) != nullptr;
    if (is_spt != (spt == row.symbol)) continue;  // another row is meant
    if (std::strncmp(row.symbol, "_Z", 2) == 0 ||
        std::strcmp(row.public_name, "hipGetDeviceProperties") == 0) {
      continue;  // several rows have this name
    }
    void* const expected = dlsym(hip_handle(), row.symbol);
    void* found = nullptr;
    EXPECT_EQ(hipGetProcAddress(row.public_name, &found, 60'200'000, flags, nullptr), hipSuccess);
    EXPECT_EQ(found, expected) << object_of(found);
    EXPECT_EQ(hipGetDriverEntryPoint(row.public_name, &found, flags, nullptr), hipSuccess);
    EXPECT_EQ(found, expected) << object_of(found);
    if (row.policy == RowPolicy::kPassed) continue;
    EXPECT_EQ(hipGetProcAddress(row.public_name, &found, 1, flags, nullptr), hipSuccess);
    EXPECT_EQ(found, expected) << object_of(found);
  }
}

TEST_P(EveryHipRow, PassesArgumentsAndUsesTheGateIfGated) {
  const TestRow& row = GetParam();
  if (row.policy == RowPolicy::kLookup) {
    void* address = &address;
    EXPECT_EQ(hipGetProcAddress("hipNeverHeardOf", &address, 60'200'000, 0, nullptr),
              hipErrorNotFound);
    EXPECT_EQ(address, nullptr);
    return;
  }
  int result = 0;
  const unsigned int before = tracked_calls();
  const std::vector<unsigned char> expected = linked(row).call(linked(row).address, &result);
  const fake::Call call = *gcr_fake_take_call();
  EXPECT_EQ(result, fake::kResult);
  ASSERT_STREQ(call.symbol, row.symbol);
  const std::vector<unsigned char> arrived(call.arguments.begin(),
                                           call.arguments.begin() + call.argument_bytes);
  EXPECT_EQ(arrived, expected);
  const bool tracked = row.policy == RowPolicy::kTracked || row.policy == RowPolicy::kWaits;
  EXPECT_EQ(tracked_calls() - before, tracked ? 1u : 0u);
  const bool inside = row.policy == RowPolicy::kGated || row.policy == RowPolicy::kTracked;
  EXPECT_EQ(call.gate_in_flight, inside ? 1u : 0u);
}

TEST_P(EveryHipRow, NestedCallsInHipAreNotTracked) {
  const TestRow& row = GetParam();
  if (row.policy == RowPolicy::kLookup || row.policy == RowPolicy::kPassed) return;
  const unsigned int before = tracked_calls();
  int result = 0;
  gcr_fake_nest();
  linked(row).call(linked(row).address, &result);
  EXPECT_STREQ(gcr_fake_take_call()->symbol, row.symbol);
  EXPECT_EQ(tracked_calls() - before, row.policy == RowPolicy::kGated ? 0u : 1u);
}

INSTANTIATE_TEST_SUITE_P(Table, EveryHipRow, testing::ValuesIn(hip_rows()),
                         [](const auto& info) { return std::string(info.param.symbol); });

TEST(HipLoader, ReturnsUnshimmedFunctionsOfHip) {
  for (const char* const name : {
#define GCR_NO_ROW(symbol) #symbol,
#include "preload/hip_no_row.inc"
       }) {
    void* const exported = dlsym(hip_handle(), name);
    EXPECT_EQ(object_of(exported), kHip) << name;
    EXPECT_EQ(next_library_search(name), exported) << name;
    EXPECT_EQ(dlvsym(hip_handle(), name, "hip_4.2"), exported) << name;
    void* found = nullptr;
    EXPECT_EQ(hipGetProcAddress(name, &found, 60'200'000, 0, nullptr), hipSuccess) << name;
    EXPECT_EQ(found, exported) << name;
  }
}

TEST(HipLoader, WithholdsAnUnknownFunction) {
  const char* const name = "hipOfALaterRelease";
  const unsigned before = withheld();
  EXPECT_EQ(dlsym(hip_handle(), name), nullptr);
  EXPECT_NE(std::string(dlerror()).find("libgcr-preload withholds"), std::string::npos);
  EXPECT_EQ(dlvsym(hip_handle(), name, "hip_4.2"), nullptr);
  EXPECT_NE(std::string(dlerror()).find("libgcr-preload withholds"), std::string::npos);
  EXPECT_EQ(dlsym(RTLD_DEFAULT, name), nullptr);
  EXPECT_EQ(dlsym(RTLD_NEXT, name), nullptr);
  EXPECT_EQ(next_library_search(name), nullptr);
  EXPECT_EQ(withheld() - before, 5u);
  // Version 1: addresses that no symbol table has.
  void* found = &found;
  hipDriverProcAddressQueryResult status = HIP_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_EQ(hipGetProcAddress(name, &found, 1, 0, &status), hipErrorNotFound);
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(status, HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(withheld() - before, 6u);
}

TEST(HipLoader, LeavesOtherNamesToTheCLibrary) {
  for (const char* const name :
       {"", "_", "__", "h", "hi", "_Z", "__h", "c", "cu", "hipNoSuchFunction"}) {
    EXPECT_EQ(dlsym(hip_handle(), name), nullptr) << name;
  }
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "gcr_fake_nest"), reinterpret_cast<void*>(&gcr_fake_nest));
}

}  // namespace
}  // namespace gcr::preload
