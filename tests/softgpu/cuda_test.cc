// Behaviour of the CUDA driver that HIP does not share, inside one process.
#include "tests/softgpu/driver_fixture.h"

namespace gcr::softgpu::test {
namespace {

class CudaTest : public DriverFixture {
 protected:
  CudaTest() : DriverFixture(Face::kCuda) {}
};

TEST_F(CudaTest, DestroyedContextFreesItsMemory) {
  const std::size_t before = free_bytes();
  CUcontext second = nullptr;
  ASSERT_EQ(cu.cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  alloc(kPiece);
  ASSERT_EQ(cu.cuCtxDestroy_v2(second), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  CUcontext current = nullptr;
  EXPECT_EQ(cu.cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, context_);
}

TEST_F(CudaTest, KernelFaultBreaksOnlyItsContext) {
  CUcontext second = nullptr;
  ASSERT_EQ(cu.cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  const CUfunction fill = kernel("gcr_fill");
  EXPECT_EQ(launch(fill, {0x1000, 512, 1}), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(cu.cuMemAlloc_v2(&address, 4096), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cu.cuCtxDestroy_v2(second), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(CudaTest, ModulesAreRecognisedByEntryNames) {
  CUmodule module = nullptr;
  EXPECT_EQ(cu.cuModuleLoadData(&module, "no PTX at all"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cu.cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.entry unheard_of() {}"),
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cu.cuModuleLoadData(&module,
                                "\x7f"
                                "ELF and so on"),
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  ASSERT_EQ(cu.cuModuleLoadData(&module, apps::kKernelsPtx), CUDA_SUCCESS);
  CUfunction function = nullptr;
  EXPECT_EQ(cu.cuModuleGetFunction(&function, module, "gcr_noop"), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuModuleGetFunction(&function, module, "unheard_of"), CUDA_ERROR_NOT_FOUND);
  CUdeviceptr variable = 0;
  std::size_t bytes = 0;
  ASSERT_EQ(cu.cuModuleGetGlobal_v2(&variable, &bytes, module, "gcr_counter_twin"), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 8);
  EXPECT_EQ(word(variable), 100) << "the initial value in the text";
  EXPECT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(CudaTest, QueryOfTheStreamIdEndsACapture) {
  const CUstream in = stream();
  CUgraph graph = nullptr;
  CUcontext context = nullptr;
  CUstreamCaptureStatus status{};
  unsigned long long id = 0;
  EXPECT_EQ(cu.cuStreamGetId(in, &id), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamBeginCapture_v2(in, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamGetCtx(in, &context), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamIsCapturing(in, &status), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamGetId(in, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cu.cuStreamEndCapture(in, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CudaTest, FunctionsAreFoundByVersionAndFlags) {
  void* old_form = nullptr;
  void* new_form = nullptr;
  CUdriverProcAddressQueryResult why{};
  const auto find = [&](const char* name, int version, cuuint64_t flags, void** function) {
    return cu.cuGetProcAddress_v2(name, function, version, flags, &why);
  };
  EXPECT_EQ(find("cuCtxCreate", 11030, 0, &old_form), CUDA_SUCCESS);
  EXPECT_EQ(old_form, reinterpret_cast<void*>(cu.cuCtxCreate_v2));
  EXPECT_EQ(find("cuCtxCreate", 13000, 0, &new_form), CUDA_SUCCESS);
  EXPECT_NE(old_form, new_form);
  EXPECT_EQ(find("cuMemAlloc", 13000, 0, &new_form), CUDA_SUCCESS);
  EXPECT_EQ(new_form, reinterpret_cast<void*>(cu.cuMemAlloc_v2));
  EXPECT_EQ(find("cuMemAlloc", 1000, 0, &new_form), CUDA_SUCCESS);
  EXPECT_EQ(new_form, nullptr);
  EXPECT_EQ(why, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(find("cuUnheardOf", 13000, 0, &new_form), CUDA_SUCCESS);
  EXPECT_EQ(new_form, nullptr);
  EXPECT_EQ(why, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(find("cuLaunchKernel", 13000, CU_GET_PROC_ADDRESS_DEFAULT, &old_form), CUDA_SUCCESS);
  EXPECT_EQ(find("cuLaunchKernel", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &new_form),
            CUDA_SUCCESS);
  EXPECT_NE(old_form, new_form);
}

TEST_F(CudaTest, ErrorsHaveNames) {
  const char* name = nullptr;
  EXPECT_EQ(cu.cuGetErrorName(CUDA_ERROR_ILLEGAL_STATE, &name), CUDA_SUCCESS);
  EXPECT_STREQ(name, "CUDA_ERROR_ILLEGAL_STATE");
  EXPECT_EQ(cu.cuGetErrorName(static_cast<CUresult>(12345), &name), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace gcr::softgpu::test
