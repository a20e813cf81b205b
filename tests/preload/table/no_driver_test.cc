// Without a driver, and with one that is older than the table: missing functions must not be found,
// as if nothing were preloaded. Also: dlsym for all other names.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/preload/table/next_library.h"
#include "tests/preload/table/table_support.h"

extern "C" {
// Weak references, as in programs that use CUDA optionally.
__attribute__((weak)) CUresult cuCtxCreate_v4(CUcontext*, CUctxCreateParams*, unsigned int, int);
__attribute__((weak)) CUresult cuLaunchHostFunc(CUstream, CUhostFn, void*);
}

extern "C" __attribute__((visibility("default"))) int gcr_twice() { return 1; }
extern "C" __attribute__((visibility("default"))) int cu_twice() { return 1; }

namespace gcr::preload {
namespace {

/// Every lookup of this program for `symbol` that needs no handle of a driver.
std::vector<void*> searches(const char* symbol) {
  return {dlsym(RTLD_DEFAULT, symbol), dlsym(RTLD_NEXT, symbol),
          dlsym(dlopen(nullptr, RTLD_NOW), symbol), next_library_search(symbol)};
}

// The order matters: a loaded driver stays loaded.
TEST(WithoutDriver, NoShimIsFound) {
  for (const TestRow& row : test_rows()) {
    for (void* const found : searches(row.symbol)) EXPECT_EQ(found, nullptr) << row.symbol;
  }
  dlerror();
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuInit"), nullptr);
  const char* error = dlerror();
  ASSERT_NE(error, nullptr);
  EXPECT_NE(std::strstr(error, "cuInit"), nullptr) << error;
}

TEST(WithoutDriver, ShimReturnsNotInitialised) {
  ASSERT_NE(&cuLaunchHostFunc, nullptr);
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): not null, as the line above asserts
  EXPECT_EQ(cuLaunchHostFunc(nullptr, nullptr, nullptr), CUDA_ERROR_NOT_INITIALIZED);
}

TEST(WithoutDriver, OtherNamesAreFoundInTheCallersScope) {
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "getpid"), reinterpret_cast<void*>(&getpid));
  EXPECT_EQ(object_of(dlsym(RTLD_DEFAULT, "getpid")), "libc.so.6");
  EXPECT_EQ(dlsym(RTLD_DEFAULT, ""), nullptr);
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "c"), nullptr);
  // Defined by this program and by the next library; the library finds its own.
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "gcr_twice"), reinterpret_cast<void*>(&gcr_twice));
  EXPECT_EQ(next_library_search("gcr_twice"), nullptr);
  EXPECT_EQ(object_of(dlsym(RTLD_NEXT, "gcr_twice")), "libgcr-test-next.so");
  EXPECT_EQ(object_of(dlsym(RTLD_NEXT, "cu_twice")), "libgcr-test-next.so");
  EXPECT_EQ(object_of(next_library_search("getpid")), "libc.so.6");
}

TEST(WithoutDriver, VersionedLookupsStayWithTheCLibrary) {
  void* const found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  EXPECT_EQ(object_of(found), "libc.so.6");
  EXPECT_EQ(dlvsym(RTLD_DEFAULT, "cuInit", "GLIBC_2.2.5"), nullptr);
}

TEST(WithOlderDriver, MissingFunctionsAreNotFound) {
  ASSERT_NE(driver_handle(), nullptr) << dlerror();
  for (const char* symbol : {"cuCtxCreate_v4", "cuMemcpyBatchAsync_v2"}) {
    EXPECT_EQ(dlsym(driver_handle(), symbol), nullptr);
    for (void* const found : searches(symbol)) EXPECT_EQ(found, nullptr) << symbol;
  }
  EXPECT_EQ(cuCtxCreate_v4(nullptr, nullptr, 0, 0), CUDA_ERROR_NOT_FOUND);
}

TEST(WithOlderDriver, ExistingFunctionsAreFoundInTheLibrary) {
  ASSERT_NE(driver_handle(), nullptr) << dlerror();
  EXPECT_EQ(object_of(dlsym(driver_handle(), "cuCtxCreate_v3")), kTableLibrary);
  EXPECT_EQ(object_of(dlvsym(driver_handle(), "cuCtxCreate_v3", "GCR_FAKE")), kTableLibrary);
}

TEST(WithOlderDriver, CuGetProcAddressReturnsTheOlderShim) {
  ASSERT_NE(driver_handle(), nullptr) << dlerror();
  const auto look_up = fake_function<GetProcAddressV2>("cuGetProcAddress_v2");
  EXPECT_EQ(object_of(reinterpret_cast<void*>(look_up)), kTableLibrary);
  void* address = nullptr;
  ASSERT_EQ(look_up("cuCtxCreate", &address, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, dlsym(driver_handle(), "cuCtxCreate_v3"));
  ASSERT_EQ(look_up("cuMemcpyBatchAsync", &address, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, nullptr);
  EXPECT_EQ(look_up("cuCtxCreate", &address, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST(WithOlderDriver, LibraryLoadedLaterFindsTheShim) {
  ASSERT_NE(driver_handle(), nullptr) << dlerror();
  EXPECT_EQ(object_of(next_library_search("cuLaunchKernel")), kTableLibrary);
}

TEST(WithOlderDriver, StaysLoadedAfterEveryClose) {
  void* const handle = driver_handle();
  ASSERT_NE(handle, nullptr) << dlerror();
  const auto launch =
      reinterpret_cast<CUresult (*)(CUstream, CUhostFn, void*)>(dlsym(handle, "cuLaunchHostFunc"));
  for (int opened = 0; opened < 100; ++opened) dlclose(handle);
  EXPECT_EQ(static_cast<int>(launch(nullptr, nullptr, nullptr)), fake::kResult);
}

}  // namespace
}  // namespace gcr::preload
