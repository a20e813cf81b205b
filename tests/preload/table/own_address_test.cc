// A driver whose cuGetProcAddress returns other addresses than its symbol table: the name, the
// version and the flags decide, not the address.
#include <gtest/gtest.h>

#include "tests/preload/table/table_support.h"

namespace gcr::preload {
namespace {

TEST(DriverWithAddressesOfItsOwn, ShimIsFoundByNameAndVersion) {
  ASSERT_NE(driver_handle(), nullptr) << dlerror();
  const auto look_up = fake_function<GetProcAddressV2>("cuGetProcAddress_v2");
  const auto meant = fake_function<fake::Meant>(fake::kMeant);
  for (const TestRow& row : test_rows()) {
    if (row.policy == RowPolicy::kPassed) continue;
    for (const int version : versions_of(row.public_name)) {
      for (const cuuint64_t flags : {0, 1, 2}) {
        const char* symbol = meant(row.public_name, version, flags);
        void* address = nullptr;
        ASSERT_EQ(look_up(row.public_name, &address, version, flags, nullptr), CUDA_SUCCESS);
        EXPECT_EQ(address, symbol == nullptr ? nullptr : dlsym(driver_handle(), symbol))
            << row.public_name << " " << version << " " << flags;
      }
    }
  }
}

TEST(DriverWithAddressesOfItsOwn, UnshimmedFunctionIsReturned) {
  const auto look_up = fake_function<GetProcAddressV2>("cuGetProcAddress_v2");
  void* address = nullptr;
  ASSERT_EQ(look_up("cuDeviceGetCount", &address, 13000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(object_of(address), kDriver);
}

TEST(DriverWithAddressesOfItsOwn, UnknownFunctionIsWithheld) {
  const auto look_up = fake_function<GetProcAddressV2>("cuGetProcAddress_v2");
  for (const char* const name : {"cuNeverHeardOf", "cuMemcpyBatchAsync"}) {
    void* address = &address;
    ASSERT_EQ(look_up(name, &address, 13040, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(address, nullptr) << name;
  }
}

}  // namespace
}  // namespace gcr::preload
