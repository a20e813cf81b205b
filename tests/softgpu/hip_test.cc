// Behaviour of the HIP runtime and compiler that CUDA does not share, inside one process, in the
// release of SOFTHIP_RELEASE.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/base/units.h"
#include "tests/apps/kernels_hip.h"
#include "tests/softgpu/hip_api.h"
#include "tests/softgpu/machines.h"

namespace gcr::softgpu::test {

const HipApi& hip_api() {
  static const HipApi api(SOFTHIP_LIBRARY, SOFTHIP_COMPILER);
  return api;
}

int own_memcpys = 0;

/// The HIP library calls some of its functions by name, and finds this one: the first of that name.
extern "C" __attribute__((visibility("default"))) hipError_t hipMemcpy(void* to, const void* from,
                                                                       std::size_t bytes,
                                                                       hipMemcpyKind kind) {
  ++own_memcpys;
  return hip_api().hipMemcpy(to, from, bytes, kind);
}

namespace {

constexpr std::size_t kPiece = 2 * kMiB;

/// As the table counts: 502 for 5.2.
int release() {
  const char* text = std::getenv("SOFTHIP_RELEASE");
  int major = 6;
  int minor = 2;
  if (text != nullptr) std::sscanf(text, "%d.%d", &major, &minor);
  return 100 * major + minor;
}

class HipMachine : public testing::Environment {
 public:
  void SetUp() override {
    machine_ = std::make_unique<Machine>(
        std::vector<Machine::Gpu>{{kGpuA, "8M"}, {kAmdGpuA, "64M"}, {kAmdGpuB, "32M"}});
    static std::vector<std::string> variables = machine_->environment();
    for (std::string& variable : variables) ::putenv(variable.data());
  }
  void TearDown() override { machine_.reset(); }

 private:
  std::unique_ptr<Machine> machine_;
};

const auto* const kMachine = testing::AddGlobalTestEnvironment(new HipMachine);

class HipTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(hip.hipSetDevice(0), hipSuccess);
    EXPECT_EQ(hip.hipDeviceReset(), hipSuccess);
  }

  void* alloc(std::size_t bytes) {
    void* address = nullptr;
    EXPECT_EQ(hip.hipMalloc(&address, bytes), hipSuccess);
    return address;
  }
  std::uint64_t word(void* address) {
    std::uint64_t value = 0;
    EXPECT_EQ(hip.hipMemcpyDtoH(&value, address, sizeof(value)), hipSuccess);
    return value;
  }
  /// The code object, or the compiler's messages.
  std::string compile(const char* source, hiprtcResult expected = HIPRTC_SUCCESS,
                      std::vector<const char*> headers = {}) {
    hiprtcProgram program = nullptr;
    EXPECT_EQ(hip.hiprtcCreateProgram(&program, source, "program", static_cast<int>(headers.size()),
                                      headers.data(), headers.data()),
              HIPRTC_SUCCESS);
    EXPECT_EQ(hip.hiprtcCompileProgram(program, 0, nullptr), expected);
    const bool good = expected == HIPRTC_SUCCESS;
    std::size_t bytes = 0;
    EXPECT_EQ((good ? hip.hiprtcGetCodeSize : hip.hiprtcGetProgramLogSize)(program, &bytes),
              HIPRTC_SUCCESS);
    std::string text(bytes, '\0');
    EXPECT_EQ((good ? hip.hiprtcGetCode : hip.hiprtcGetProgramLog)(program, text.data()),
              HIPRTC_SUCCESS);
    EXPECT_EQ(hip.hiprtcDestroyProgram(&program), HIPRTC_SUCCESS);
    return text;
  }
  hipError_t load(const std::string& code) {
    hipModule_t module = nullptr;
    return hip.hipModuleLoadData(&module, code.data());
  }
  hipError_t create(hipMemGenericAllocationHandle_t* handle) {
    hipMemAllocationProp old{};
    old.type = hipMemAllocationTypePinned;
    old.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
    old.location = {hipMemLocationTypeDevice, 1};
    hipMemAllocationPropR0503 recent{};
    recent.type = hipMemAllocationTypePinned;
    recent.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
    recent.location = {hipMemLocationTypeDevice, 1};
    return hip.hipMemCreate(
        handle, kPiece,
        release() < 503 ? &old : reinterpret_cast<const hipMemAllocationProp*>(&recent), 0);
  }

  const HipApi& hip = hip_api();
};

TEST_F(HipTest, FirstCallInitialisesIt) {
  int count = 0;
  EXPECT_EQ(hip.hipGetDeviceCount(&count), hipSuccess);
  EXPECT_EQ(count, 2) << "the third GPU is not AMD's";
  EXPECT_EQ(hip.hipInit(0), hipSuccess);
}

TEST_F(HipTest, VersionIsThatOfTheRelease) {
  int version = 0;
  ASSERT_EQ(hip.hipRuntimeGetVersion(&version), hipSuccess);
  EXPECT_EQ(version / 10'000'000, release() / 100);
  EXPECT_EQ(version / 100'000 % 100, release() % 100);
}

TEST_F(HipTest, GpuUuidIsItsUniqueId) {
  hipUUID uuid{};
  ASSERT_EQ(hip.hipDeviceGetUuid(&uuid, 1), hipSuccess);
  EXPECT_EQ(std::string(uuid.bytes, sizeof(uuid.bytes)), kAmdGpuB);
  hipDeviceProp_t old{};
  hipDeviceProp_tR0600 recent{};
  ASSERT_EQ(hip.hipGetDeviceProperties(&old, 1), hipSuccess);
  ASSERT_EQ(hip.hipGetDevicePropertiesR0600(&recent, 1), hipSuccess);
  EXPECT_EQ(std::memcmp(recent.uuid.bytes, uuid.bytes, sizeof(uuid.bytes)), 0);
  EXPECT_STREQ(old.name, recent.name);
  EXPECT_STREQ(old.gcnArchName, recent.gcnArchName);
  EXPECT_EQ(old.totalGlobalMem, 32 * kMiB);
  EXPECT_EQ(recent.totalGlobalMem, 32 * kMiB);
}

TEST_F(HipTest, LastErrorIsThatOfTheReleasesRule) {
  EXPECT_EQ(hip.hipSetDevice(7), hipErrorInvalidDevice);
  EXPECT_EQ(hip.hipPeekAtLastError(), hipErrorInvalidDevice);
  EXPECT_EQ(hip.hipSetDevice(0), hipSuccess);
  EXPECT_EQ(hip.hipPeekAtLastError(), release() < 700 ? hipSuccess : hipErrorInvalidDevice);
  EXPECT_EQ(hip.hipSetDevice(7), hipErrorInvalidDevice);
  EXPECT_EQ(hip.hipGetLastError(), hipErrorInvalidDevice);
  EXPECT_EQ(hip.hipGetLastError(), hipSuccess);
}

TEST_F(HipTest, MemoryPropertiesHaveTheReleasesLayout) {
  hipMemGenericAllocationHandle_t handle = nullptr;
  ASSERT_EQ(create(&handle), hipSuccess);
  union {
    hipMemAllocationProp old;
    hipMemAllocationPropR0503 recent;
  } properties{};
  ASSERT_EQ(hip.hipMemGetAllocationPropertiesFromHandle(&properties.old, handle), hipSuccess);
  const hipMemLocation location =
      release() < 503 ? properties.old.location : properties.recent.location;
  EXPECT_EQ(location.type, hipMemLocationTypeDevice);
  EXPECT_EQ(location.id, 1);
  EXPECT_EQ(hip.hipMemRelease(handle), hipSuccess);
}

TEST_F(HipTest, DescriptorIsImportedByPointerUntil71) {
  hipMemGenericAllocationHandle_t handle = nullptr;
  hipMemGenericAllocationHandle_t twin = nullptr;
  int file = -1;
  ASSERT_EQ(create(&handle), hipSuccess);
  ASSERT_EQ(
      hip.hipMemExportToShareableHandle(&file, handle, hipMemHandleTypePosixFileDescriptor, 0),
      hipSuccess);
  void* given = release() < 701 ? static_cast<void*>(&file)
                                : reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  EXPECT_EQ(hip.hipMemImportFromShareableHandle(&twin, given, hipMemHandleTypePosixFileDescriptor),
            hipSuccess);
  ::close(file);
  EXPECT_EQ(hip.hipMemRelease(handle), hipSuccess);
  EXPECT_EQ(hip.hipMemRelease(twin), hipSuccess);
}

TEST_F(HipTest, FaultStaysUntilTheDeviceIsReset) {
  hipModule_t module = nullptr;
  hipFunction_t fill = nullptr;
  const std::string code = compile(apps::kKernelsHip);
  ASSERT_EQ(hip.hipModuleLoadData(&module, code.data()), hipSuccess);
  ASSERT_EQ(hip.hipModuleGetFunction(&fill, module, "gcr_fill"), hipSuccess);
  std::uint64_t arguments[] = {0x1000, 512, 1};
  void* each[] = {&arguments[0], &arguments[1], &arguments[2]};
  EXPECT_EQ(hip.hipModuleLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, nullptr, each, nullptr),
            hipSuccess);
  EXPECT_EQ(hip.hipDeviceSynchronize(), hipErrorIllegalAddress);
  void* address = nullptr;
  EXPECT_EQ(hip.hipMalloc(&address, 4096), hipErrorIllegalAddress);
  EXPECT_EQ(hip.hipDeviceReset(), hipSuccess);
  EXPECT_EQ(hip.hipMalloc(&address, 4096), hipSuccess);
}

TEST_F(HipTest, NullPointersAndDirectionsAreChecked) {
  void* address = &address;
  EXPECT_EQ(hip.hipMalloc(&address, 0), hipSuccess);
  EXPECT_EQ(address, nullptr);
  EXPECT_EQ(hip.hipFree(nullptr), hipSuccess);
  char byte = 0;
  EXPECT_EQ(hip.hipMemcpy(&byte, &byte, 1, static_cast<hipMemcpyKind>(77)),
            hipErrorInvalidMemcpyDirection);
}

TEST_F(HipTest, CodeIsLoadedIfItsKernelsAreKnown) {
  EXPECT_EQ(load(compile("extern \"C\" __global__ void unheard_of(int*) {}")),
            hipErrorNoBinaryForGpu);
  EXPECT_EQ(load(compile("__global__ void gcr_noop(void) {}")), hipSuccess);
  EXPECT_EQ(load("\177ELF and so on"), hipErrorNoBinaryForGpu);
  EXPECT_EQ(load("no code at all"), hipErrorInvalidImage);
  EXPECT_THAT(
      compile("struct S {}; extern \"C\" __global__ void gcr_fill(S) {}", HIPRTC_ERROR_COMPILATION),
      testing::HasSubstr("gcr_fill"));
}

TEST_F(HipTest, TheDigestKernelCompilesWithItsLanguage) {
  const auto content = [](const std::string& name) {
    std::ifstream file(std::string(SOFTHIP_DIGEST_SOURCES) + "/" + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string language = content("hip/kernel_language.h");
  const std::string source = content("digest_kernel.cu");
  EXPECT_EQ(load(compile(source.c_str(), HIPRTC_SUCCESS, {language.c_str()})), hipSuccess);
}

TEST_F(HipTest, LoweredNamesExistAfterCompilation) {
  hiprtcProgram program = nullptr;
  const char* name = nullptr;
  ASSERT_EQ(hip.hiprtcCreateProgram(&program, apps::kKernelsHip, "program", 0, nullptr, nullptr),
            HIPRTC_SUCCESS);
  ASSERT_EQ(hip.hiprtcAddNameExpression(program, "gcr_fill"), HIPRTC_SUCCESS);
  EXPECT_EQ(hip.hiprtcGetLoweredName(program, "gcr_fill", &name),
            HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION);
  ASSERT_EQ(hip.hiprtcCompileProgram(program, 0, nullptr), HIPRTC_SUCCESS);
  ASSERT_EQ(hip.hiprtcGetLoweredName(program, "gcr_fill", &name), HIPRTC_SUCCESS);
  EXPECT_STREQ(name, "gcr_fill");
  EXPECT_EQ(hip.hiprtcGetLoweredName(program, "gcr_noop", &name),
            HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID);
  EXPECT_EQ(hip.hiprtcDestroyProgram(&program), HIPRTC_SUCCESS);
}

/// The data that a compiler puts into a program with kernels.
class RegisteredCode : public HipTest {
 protected:
  void SetUp() override {
    modules_ = hip.__hipRegisterFatBinary(&wrapper_);
    hip.__hipRegisterFunction(modules_, &kernel_, nullptr, "gcr_counter_increment", 0, nullptr,
                              nullptr, nullptr, nullptr, nullptr);
    hip.__hipRegisterVar(modules_, &variable_, nullptr, "gcr_counter_twin", 0, 8, 0, 0);
  }
  void TearDown() override {
    hip.__hipUnregisterFatBinary(modules_);
    HipTest::TearDown();
  }

  struct Wrapper {
    std::uint32_t magic = 0x48495046;
    std::uint32_t version = 1;
    const void* code;
    void* unused = nullptr;
  };
  const std::string code_ = compile(apps::kKernelsHip);
  const Wrapper wrapper_{.code = code_.data()};
  void** modules_ = nullptr;
  char kernel_ = 0;    ///< its address identifies the kernel
  char variable_ = 0;  ///< and this one's the variable
};

TEST_F(RegisteredCode, IsLaunchedByTheProgramsAddresses) {
  void* number = alloc(8);
  ASSERT_EQ(hip.hipMemset(number, 0, 8), hipSuccess);
  void* arguments[] = {&number};
  EXPECT_EQ(hip.hipLaunchKernel(&kernel_, {}, {}, arguments, 0, nullptr), hipSuccess);
  EXPECT_EQ(hip.hipLaunchKernel_spt(&kernel_, {}, {}, arguments, 0, nullptr), hipSuccess);
  EXPECT_EQ(hip.hipDeviceSynchronize(), hipSuccess);
  EXPECT_EQ(word(number), 2);
  std::uint64_t twin = 0;
  EXPECT_EQ(hip.hipMemcpyFromSymbol(&twin, &variable_, 8, 0, hipMemcpyDeviceToHost), hipSuccess);
  EXPECT_EQ(twin, 102);
  EXPECT_EQ(hip.hipMemcpyFromSymbol(&twin, &variable_, 8, 1, hipMemcpyDeviceToHost),
            hipErrorInvalidValue);
  EXPECT_EQ(hip.hipLaunchKernel(&twin, {}, {}, arguments, 0, nullptr),
            hipErrorInvalidDeviceFunction);
  hipFuncAttributes attributes{};
  EXPECT_EQ(hip.hipFuncGetAttributes(&attributes, &kernel_), hipSuccess);
  EXPECT_EQ(attributes.maxThreadsPerBlock, 1024);
}

TEST_F(RegisteredCode, IsLoadedOnEachDevice) {
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_EQ(hip.hipGetSymbolAddress(&first, &variable_), hipSuccess);
  ASSERT_EQ(hip.hipSetDevice(1), hipSuccess);
  ASSERT_EQ(hip.hipGetSymbolAddress(&second, &variable_), hipSuccess);
  EXPECT_NE(first, second);
  EXPECT_EQ(hip.hipDeviceReset(), hipSuccess);
}

TEST_F(RegisteredCode, ConfigurationAppliesToTheNextLaunch) {
  EXPECT_EQ(hip.__hipPushCallConfiguration({2, 3, 4}, {5, 6, 7}, 8, hipStreamPerThread),
            hipSuccess);
  dim3 grid;
  dim3 block;
  std::size_t shared = 0;
  hipStream_t stream = nullptr;
  EXPECT_EQ(hip.__hipPopCallConfiguration(&grid, &block, &shared, &stream), hipSuccess);
  EXPECT_EQ(grid.z, 4U);
  EXPECT_EQ(block.x, 5U);
  EXPECT_EQ(shared, 8);
  EXPECT_EQ(stream, hipStreamPerThread);
  EXPECT_EQ(hip.__hipPopCallConfiguration(&grid, &block, &shared, &stream),
            hipErrorMissingConfiguration);
}

TEST_F(HipTest, SomeFunctionsCallOthersByName) {
  void* first = alloc(8);
  void* second = alloc(8);
  const int before = own_memcpys;
  EXPECT_EQ(hip.hipMemcpyPeer(first, 0, second, 0, 8), hipSuccess);
  EXPECT_EQ(own_memcpys, before + 1);
  EXPECT_EQ(hip.hipMemcpyDtoD(first, second, 8), hipSuccess);
  EXPECT_EQ(own_memcpys, before + 1);
}

TEST_F(HipTest, ManagedVariableExistsOnceRegistered) {
  std::uint64_t initial = 77;
  std::uint64_t* variable = nullptr;
  hip.__hipRegisterManagedVar(nullptr, reinterpret_cast<void**>(&variable), &initial, "variable",
                              sizeof(initial), alignof(std::uint64_t));
  ASSERT_NE(variable, nullptr);
  EXPECT_EQ(*variable, 77);
  hipPointerAttribute_t attributes{};
  ASSERT_EQ(hip.hipPointerGetAttributes(&attributes, variable), hipSuccess);
  EXPECT_EQ(attributes.isManaged, 1);
}

TEST_F(HipTest, PoolsCountTheirAllocations) {
  hipMemPool_t usual = nullptr;
  hipMemPool_t pool = nullptr;
  hipMemPoolProps properties{};
  properties.allocType = hipMemAllocationTypePinned;
  properties.location = {hipMemLocationTypeDevice, 0};
  ASSERT_EQ(hip.hipMemPoolCreate(&pool, &properties), hipSuccess);
  ASSERT_EQ(hip.hipDeviceGetDefaultMemPool(&usual, 0), hipSuccess);
  EXPECT_EQ(hip.hipDeviceSetMemPool(0, pool), hipSuccess);
  const auto used = [&] {
    std::uint64_t bytes = 0;
    EXPECT_EQ(hip.hipMemPoolGetAttribute(pool, hipMemPoolAttrUsedMemCurrent, &bytes), hipSuccess);
    return bytes;
  };
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_EQ(hip.hipMallocAsync(&first, kPiece, nullptr), hipSuccess);
  ASSERT_EQ(hip.hipMallocFromPoolAsync(&second, 4096, usual, nullptr), hipSuccess);
  EXPECT_EQ(used(), kPiece);
  EXPECT_EQ(hip.hipFreeAsync(first, nullptr), hipSuccess);
  EXPECT_EQ(hip.hipFree(second), hipSuccess);
  EXPECT_EQ(hip.hipStreamSynchronize(nullptr), hipSuccess);
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(hip.hipMemPoolDestroy(usual), hipErrorInvalidValue);
  EXPECT_EQ(hip.hipMemPoolDestroy(pool), hipSuccess);
}

TEST_F(HipTest, ContextIsItsDevice) {
  hipCtx_t second = nullptr;
  int device = -1;
  ASSERT_EQ(hip.hipCtxCreate(&second, 0, 1), hipSuccess);
  EXPECT_EQ(hip.hipGetDevice(&device), hipSuccess);
  EXPECT_EQ(device, 1);
  hipCtx_t primary = nullptr;
  EXPECT_EQ(hip.hipDevicePrimaryCtxRetain(&primary, 1), hipSuccess);
  EXPECT_EQ(primary, second);
  EXPECT_EQ(hip.hipCtxDestroy(second), hipSuccess);
  EXPECT_EQ(hip.hipGetDevice(&device), hipSuccess);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(hip.hipCtxDestroy(nullptr), hipErrorInvalidContext);
}

TEST_F(HipTest, FunctionsAreFoundByNameAndRelease) {
  void* function = nullptr;
  hipDriverProcAddressQueryResult why{};
  const auto find = [&](const char* name, int version, std::uint64_t flags) {
    return hip.hipGetProcAddress(name, &function, version, flags, &why);
  };
  EXPECT_EQ(find("hipMalloc", 602, 0), hipSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(hip.hipMalloc));
  EXPECT_EQ(find("hipUnheardOf", 602, 0), hipErrorInvalidValue);
  EXPECT_EQ(why, HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(find("hipGetDeviceProperties", 502, 0), hipSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(hip.hipGetDeviceProperties));
  EXPECT_EQ(find("hipGetDeviceProperties", 600, 0), hipSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(hip.hipGetDevicePropertiesR0600));
  EXPECT_EQ(find("hipLibraryLoadData", 602, 0),
            release() < 702 ? hipErrorInvalidValue : hipSuccess);
  EXPECT_EQ(find("hipMemset", 602, HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM), hipSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(release() < 702 ? hip.hipMemset : hip.hipMemset_spt));
}

TEST_F(HipTest, PerThreadStreamBelongsToItsThread) {
  std::promise<void> gate;
  ASSERT_EQ(
      hip.hipLaunchHostFunc_spt(
          nullptr, [](void* self) { static_cast<std::promise<void>*>(self)->get_future().wait(); },
          &gate),
      hipSuccess);
  EXPECT_EQ(hip.hipStreamQuery_spt(nullptr), hipErrorNotReady);
  std::thread([&] { EXPECT_EQ(hip.hipStreamQuery_spt(nullptr), hipSuccess); }).join();
  gate.set_value();
  EXPECT_EQ(hip.hipStreamSynchronize_spt(nullptr), hipSuccess);
}

TEST_F(HipTest, StreamWaitsForAWordOfAnother) {
  void* words = alloc(16);
  ASSERT_EQ(hip.hipMemset(words, 0, 16), hipSuccess);
  hipStream_t waiting = nullptr;
  hipStream_t writing = nullptr;
  ASSERT_EQ(hip.hipStreamCreateWithFlags(&waiting, hipStreamNonBlocking), hipSuccess);
  ASSERT_EQ(hip.hipStreamCreateWithFlags(&writing, hipStreamNonBlocking), hipSuccess);
  EXPECT_EQ(hip.hipStreamWaitValue64(waiting, words, 5, hipStreamWaitValueGte, ~std::uint64_t{0}),
            hipSuccess);
  EXPECT_EQ(hip.hipStreamQuery(waiting), hipErrorNotReady);
  EXPECT_EQ(hip.hipStreamWriteValue64(writing, words, 4, 0), hipSuccess);
  EXPECT_EQ(hip.hipStreamSynchronize(writing), hipSuccess);
  EXPECT_EQ(hip.hipStreamQuery(waiting), hipErrorNotReady) << "4 is not 5";
  EXPECT_EQ(hip.hipStreamWriteValue64(writing, words, 5, 0), hipSuccess);
  EXPECT_EQ(hip.hipStreamSynchronize(waiting), hipSuccess);
}

TEST_F(HipTest, GraphsAreBuiltByHand) {
  void* words = alloc(16);
  ASSERT_EQ(hip.hipMemset(words, 0, 16), hipSuccess);
  hipGraph_t graph = nullptr;
  hipGraphNode_t fill = nullptr;
  hipGraphNode_t copy = nullptr;
  ASSERT_EQ(hip.hipGraphCreate(&graph, 0), hipSuccess);
  const hipMemsetParams params{words, 4, 1, 8, 0x01020304, 2};
  ASSERT_EQ(hip.hipGraphAddMemsetNode(&fill, graph, nullptr, 0, &params), hipSuccess);
  ASSERT_EQ(hip.hipGraphAddMemcpyNode1D(&copy, graph, &fill, 1, static_cast<char*>(words) + 8,
                                        words, 8, hipMemcpyDeviceToDevice),
            hipSuccess);
  hipGraphNodeType type{};
  EXPECT_EQ(hip.hipGraphNodeGetType(fill, &type), hipSuccess);
  EXPECT_EQ(unsigned{type}, release() < 503 ? unsigned{hipGraphNodeTypeMemset}
                                            : unsigned{hipGraphNodeTypeMemsetR0503});
  hipGraphExec_t exec = nullptr;
  ASSERT_EQ(hip.hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0), hipSuccess);
  EXPECT_EQ(word(words), 0);
  EXPECT_EQ(hip.hipGraphLaunch(exec, nullptr), hipSuccess);
  EXPECT_EQ(hip.hipDeviceSynchronize(), hipSuccess);
  EXPECT_EQ(word(static_cast<char*>(words) + 8), 0x0102030401020304U);
  EXPECT_EQ(hip.hipGraphExecDestroy(exec), hipSuccess);
  EXPECT_EQ(hip.hipGraphDestroy(graph), hipSuccess);
}

TEST_F(HipTest, PitchedMemoryIsCopiedBySlice) {
  hipPitchedPtr block{};
  ASSERT_EQ(hip.hipMalloc3D(&block, {5, 2, 2}), hipSuccess);
  ASSERT_EQ(hip.hipMemset3D(block, 7, {5, 2, 2}), hipSuccess);
  char text[] = "abcdefghijklmnopqrst";
  hipMemcpy3DParms copy{};
  copy.srcPtr = {text, 5, 5, 2};
  copy.dstPtr = block;
  copy.extent = {5, 2, 2};
  copy.kind = hipMemcpyHostToDevice;
  ASSERT_EQ(hip.hipMemcpy3D(&copy), hipSuccess);
  char row[5];
  ASSERT_EQ(hip.hipMemcpyDtoH(row, static_cast<char*>(block.ptr) + 3 * block.pitch, 5), hipSuccess);
  EXPECT_EQ(std::string(row, 5), "pqrst");
}

TEST_F(HipTest, PointersHaveAttributes) {
  void* pinned = nullptr;
  ASSERT_EQ(hip.hipHostMalloc(&pinned, 4096, hipHostMallocPortable), hipSuccess);
  hipPointerAttribute_t attributes{};
  ASSERT_EQ(hip.hipPointerGetAttributes(&attributes, pinned), hipSuccess);
  EXPECT_EQ(unsigned{attributes.memoryType},
            release() < 600 ? unsigned{hipMemoryTypeHost} : unsigned{hipMemoryTypeHostR0600});
  EXPECT_EQ(attributes.hostPointer, pinned);
  EXPECT_EQ(attributes.allocationFlags, unsigned{hipHostMallocPortable});
  void* address = alloc(4096);
  ASSERT_EQ(hip.hipPointerGetAttributes(&attributes, address), hipSuccess);
  EXPECT_EQ(unsigned{attributes.memoryType},
            release() < 600 ? unsigned{hipMemoryTypeDevice} : unsigned{hipMemoryTypeDeviceR0600});
  EXPECT_EQ(hip.hipPointerGetAttributes(&attributes, &attributes), hipErrorInvalidValue);
  EXPECT_EQ(hip.hipHostFree(pinned), hipSuccess);
}

}  // namespace
}  // namespace gcr::softgpu::test
