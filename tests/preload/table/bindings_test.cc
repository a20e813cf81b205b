// Libraries that the loader binds to the driver itself, bypassing the preloaded library: they are
// rebound, or named. One process each, since a driver that was found once stays so.
#include "preload/bindings.h"

#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/preload/table/table_support.h"

namespace gcr::preload {
namespace {

using bindings::Found;

constexpr char kHip[] = "libamdhip64.so.6";

void* open_deep(const std::string& path, int mode = RTLD_NOW) {
  void* const handle = dlopen(path.c_str(), mode | RTLD_LOCAL | RTLD_DEEPBIND);
  EXPECT_NE(handle, nullptr) << dlerror();
  return handle;
}

/// The function `name` of a library that is open.
template <class Function>
auto function(void* handle, const char* name) {
  return reinterpret_cast<Function*>(dlsym(handle, name));
}

/// How many threads were inside the gate at the last call of the driver: 0 if the call bypassed it.
unsigned gate_at_last_call(const char* driver = kDriver) {
  const auto take = function<const fake::Call*()>(dlopen(driver, RTLD_NOW), fake::kTakeCall);
  const fake::Call call = *take();
  EXPECT_NE(call.symbol, nullptr);
  return call.gate_in_flight;
}

Found find_ungated(std::string* culprit) {
  char text[256] = "";
  const auto find = function<int(char*, std::size_t)>(RTLD_DEFAULT, "cuTestFindUngated");
  const auto found = static_cast<Found>(find(text, sizeof(text)));
  *culprit = text;
  return found;
}

void expect_past_the_gate(const std::string& object, const std::string& what) {
  std::string culprit;
  EXPECT_EQ(find_ungated(&culprit), Found::kPastTheGate);
  EXPECT_NE(culprit.find(object), std::string::npos) << culprit;
  EXPECT_NE(culprit.find(what), std::string::npos) << culprit;
}

void expect_calls_through_the_gate(void* library, const char* driver = kDriver) {
  for (const char* const name : {"deep_call", "deep_call_by_pointer"}) {
    function<int()>(library, name)();
    EXPECT_EQ(gate_at_last_call(driver), 1u) << name;
  }
  std::string culprit;
  EXPECT_EQ(find_ungated(&culprit), Found::kNothing) << culprit;
}

/// With bindings that the loader makes at once and read-only, and with lazy bindings.
class EveryBinding : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, EveryBinding, testing::Values(GCR_DEEP_NOW, GCR_DEEP_LAZY),
                         [](const auto& one) {
                           return std::string(one.param == std::string(GCR_DEEP_NOW) ? "Now"
                                                                                     : "Lazy");
                         });

TEST_P(EveryBinding, DeepBoundLibraryCallsThroughTheGate) {
  ASSERT_NE(driver_handle(), nullptr);
  expect_calls_through_the_gate(open_deep(GetParam(), RTLD_LAZY));
}

TEST_P(EveryBinding, DriverLoadedByALibraryIsRebound) {
  void* const library = open_deep(GetParam(), RTLD_LAZY);
  EXPECT_NE(dlopen(kDriver, RTLD_NOW | RTLD_NOLOAD), nullptr);
  expect_calls_through_the_gate(library);
}

TEST_P(EveryBinding, LookupsOfADeepBoundLibraryFindTheShims) {
  const auto search = function<void*(const char*)>(open_deep(GetParam(), RTLD_LAZY), "deep_search");
  EXPECT_EQ(object_of(search("cuMemsetD8_v2")), kTableLibrary);
  EXPECT_EQ(object_of(search("cuDeviceGetCount")), kDriver);
  const unsigned before = withheld();
  EXPECT_EQ(search("cuNeverHeardOf"), nullptr);
  EXPECT_EQ(withheld() - before, 1u);
}

TEST_P(EveryBinding, DriverLoadedByADeepBoundLibraryIsFound) {
  const auto find = function<void*(const char*, const char*)>(
      open_deep(GetParam() == std::string(GCR_DEEP_NOW) ? GCR_DEEP_ALONE_NOW : GCR_DEEP_ALONE_LAZY,
                RTLD_LAZY),
      "deep_find");
  EXPECT_EQ(object_of(find(kDriver, "cuMemsetD8_v2")), kTableLibrary);
  EXPECT_EQ(object_of(find(kDriver, "cuGetProcAddress_v2")), kTableLibrary);
  EXPECT_EQ(find(kDriver, "cuNeverHeardOf"), nullptr);
}

TEST(Bindings, LibraryOpenedByAConstructorUsesTheGate) {
  ASSERT_NE(driver_handle(), nullptr);
  ASSERT_EQ(setenv("GCR_OPENS", GCR_DEEP_NOW, 1), 0);
  ASSERT_NE(dlopen(GCR_OPENING, RTLD_NOW), nullptr) << dlerror();
  EXPECT_EQ(gate_at_last_call(), 1u);
}

TEST(Bindings, LookupsByTheCLibraryFindTheShims) {
  using Dlsym = void*(void*, const char*);
  void* const c_library = dlopen("libc.so.6", RTLD_NOW);
  const auto search = reinterpret_cast<Dlsym*>(dlvsym(c_library, "dlsym", "GLIBC_2.2.5"));
  ASSERT_EQ(object_of(reinterpret_cast<void*>(search)), "libc.so.6");
  void* const driver = driver_handle();
  ASSERT_NE(dlsym(driver, "cuInit"), nullptr);
  for (const TestRow& row : test_rows()) {
    EXPECT_EQ(object_of(search(driver, row.symbol)), home_of(row)) << row.symbol;
  }
}

TEST(Bindings, BindingsOfHipAreRedirectedToo) {
  expect_calls_through_the_gate(open_deep(GCR_DEEP_HIP), kHip);
}

TEST(Bindings, DriverInItsOwnNamespaceIsNamed) {
  ASSERT_NE(dlsym(driver_handle(), "cuInit"), nullptr);
  std::string culprit;
  EXPECT_EQ(find_ungated(&culprit), Found::kNothing);
  void* const library = dlmopen(LM_ID_NEWLM, GCR_DEEP_NOW, RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  expect_past_the_gate(kDriver, "second copy (dlmopen)");
  expect_past_the_gate(kDriver, "second copy (dlmopen)");
  dlclose(library);
  EXPECT_EQ(find_ungated(&culprit), Found::kNothing) << culprit;
}

TEST(Bindings, SecondDriverIsNamed) {
  ASSERT_NE(dlsym(driver_handle(), "cuInit"), nullptr);
  ASSERT_NE(dlopen(GCR_OLDER_DRIVER, RTLD_NOW), nullptr) << dlerror();
  expect_past_the_gate("fake_driver_older/libcuda.so.1", "second copy");
}

TEST(Bindings, UnknownFunctionIsNamedEvenIfNotCalled) {
  for (const char* const path : {GCR_DEEP_UNKNOWN_NOW, GCR_DEEP_UNKNOWN_LAZY}) {
    void* const library = dlopen(path, RTLD_LAZY);
    ASSERT_NE(library, nullptr) << dlerror();
    ASSERT_NE(dlsym(driver_handle(), "cuInit"), nullptr);
    expect_past_the_gate(path, "cuNeverHeardOf");
    dlclose(library);
    std::string culprit;
    EXPECT_EQ(find_ungated(&culprit), Found::kNothing) << culprit;
  }
}

/// From now on the protection of these pages cannot be changed, and they cannot be unmapped.
bool seal(const void* address, std::size_t bytes) {
  constexpr long kMseal = 462;
  return syscall(kMseal, address, bytes, 0) == 0;
}

TEST(Bindings, LibraryIsReboundDespiteASealedDriver) {
  Dl_info driver{};
  ASSERT_NE(dladdr(dlsym(driver_handle(), fake::kTakeCall), &driver), 0);
  if (!seal(driver.dli_fbase, 4096)) GTEST_SKIP() << "a kernel before 6.10";
  void* const library = open_deep(GCR_DEEP_NOW);
  expect_calls_through_the_gate(library);
}

TEST(Bindings, SealedBindingIsNamed) {
  void* const page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!seal(page, 4096)) GTEST_SKIP() << "a kernel before 6.10";
  void* const library = open_deep(GCR_DEEP_SEALED);
  function<int()>(library, "deep_call_by_pointer")();
  EXPECT_EQ(gate_at_last_call(), 0u);
  expect_past_the_gate("libdeep_sealed.so", "calls past the gate: cuMemsetD8_v2");
}

}  // namespace
}  // namespace gcr::preload
