// The drivers of CUDA and of HIP inside one process, as the tests call them.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

#include "src/base/units.h"
#include "tests/apps/kernels_ptx.h"
#include "tests/softgpu/calls.h"
#include "tests/softgpu/face.h"
#include "tests/softgpu/machines.h"

namespace gcr::softgpu::test {

inline constexpr std::size_t kPiece = 2 * kMiB;

/// The library of that face, initialised on the one machine of this process: it has both.
const Calls& driver(Face face);

/// That machine.
const Machine& machine();

/// Work on a new context; for HIP on the first GPU, which is reset at the end.
class DriverFixture : public testing::Test {
 protected:
  explicit DriverFixture(Face face) : cu(driver(face)) {}

  void SetUp() override { ASSERT_EQ(cu.cuCtxCreate_v2(&context_, 0, 0), CUDA_SUCCESS); }
  void TearDown() override { EXPECT_EQ(cu.cuCtxDestroy_v2(context_), CUDA_SUCCESS); }

  CUdeviceptr alloc(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu.cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  std::size_t free_bytes() {
    std::size_t free = 0;
    EXPECT_EQ(cu.cuMemGetInfo_v2(&free, nullptr), CUDA_SUCCESS);
    return free;
  }
  std::uint64_t word(CUdeviceptr address) {
    std::uint64_t value = 0;
    EXPECT_EQ(cu.cuMemcpyDtoH_v2(&value, address, 8), CUDA_SUCCESS);
    return value;
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream handle = nullptr;
    EXPECT_EQ(cu.cuStreamCreate(&handle, flags), CUDA_SUCCESS);
    return handle;
  }
  CUfunction kernel(const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    EXPECT_EQ(cu.cuModuleLoadData(&module, apps::kKernelsPtx), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
    return function;
  }
  CUresult launch(CUfunction function, std::vector<std::uint64_t> arguments,
                  CUstream in = nullptr) {
    std::vector<void*> pointers;
    for (auto& argument : arguments) pointers.push_back(&argument);
    return cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, in, pointers.data(), nullptr);
  }
  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                  CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.requestedHandleTypes = types;
    return cu.cuMemCreate(handle, bytes, &properties, 0);
  }
  CUresult give_access(CUdeviceptr address, std::size_t bytes) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cu.cuMemSetAccess(address, bytes, &access, 1);
  }
  CUdeviceptr reserve(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu.cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }

  const Calls& cu;
  CUcontext context_ = nullptr;
};

/// Work that stays on a stream until it is released.
class Blocker {
 public:
  void put_on(const Calls& cu, CUstream stream) {
    EXPECT_EQ(cu.cuLaunchHostFunc(
                  stream,
                  [](void* self) { static_cast<Blocker*>(self)->gate_.get_future().wait(); }, this),
              CUDA_SUCCESS);
  }
  void unblock() { gate_.set_value(); }

 private:
  std::promise<void> gate_;
};

}  // namespace gcr::softgpu::test
