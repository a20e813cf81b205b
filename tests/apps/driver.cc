#include "tests/apps/driver.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/apps/hip_forms.h"
#include "tests/apps/kernels_ptx.h"

namespace gcr::apps {
namespace {

constexpr unsigned kBlock = 256;
constexpr std::uint64_t kMaxBlocks = 2048;

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*);

volatile sig_atomic_t termination = 0;

void on_termination(int) { termination = 1; }

void* look_up(GetProcAddress get, const char* name, int version) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (get(name, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS ||
      function == nullptr) {
    fail("find a driver function", name);
  }
  return function;
}

Driver load_cuda(void* library) {
  const auto get = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) fail("find cuGetProcAddress_v2", "the driver is older than CUDA 12");
  Driver driver;
#define GCR_APPS_LOAD(member, cuda, version, hip, parameters) \
  driver.member = reinterpret_cast<CUresult(*) parameters>(look_up(get, #cuda, version));
  GCR_APPS_FUNCTIONS(GCR_APPS_LOAD)
#undef GCR_APPS_LOAD
  return driver;
}

Driver load_hip() {
  void* library = nullptr;
  for (const char* name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}) {
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  }
  if (library == nullptr) fail("load the driver", "there is neither CUDA nor HIP");
  const HipForms& forms = hip_forms(library);
  // The memory had another layout before.
  if (forms.version < 50'300'000) fail("use HIP", "ROCm 5.3 or newer is needed");
  Driver driver;
  driver.error_name = forms.error_name;
  driver.attribute = forms.attribute;
  driver.load_module = forms.load_module;
  driver.import_memory = forms.import_memory;
#define GCR_APPS_LOAD(member, cuda, version, hip, parameters)                         \
  if (driver.member == nullptr) {                                                     \
    driver.member = reinterpret_cast<CUresult(*) parameters>(::dlsym(library, #hip)); \
  }                                                                                   \
  if (driver.member == nullptr) fail("find a function of HIP", #hip);
  GCR_APPS_FUNCTIONS(GCR_APPS_LOAD)
#undef GCR_APPS_LOAD
  return driver;
}

}  // namespace

Driver load_driver() {
  const char* asked = std::getenv("GCR_APP_RUNTIME");
  const std::string_view runtime = asked != nullptr ? asked : "";
  if (runtime != "hip") {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) return load_cuda(library);
  }
  if (runtime == "cuda") fail("load the driver", ::dlerror());
  return load_hip();
}

void fail(std::string_view doing, const std::string& why) {
  std::fprintf(stderr, "cannot %.*s: %s\n", static_cast<int>(doing.size()), doing.data(),
               why.c_str());
  std::exit(1);
}

bool termination_requested() { return termination != 0; }

void catch_termination() {
  struct sigaction action {};
  action.sa_handler = on_termination;  // no SA_RESTART: SIGTERM must interrupt a blocking call
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
}

int device_count() {
  const Driver driver = load_driver();
  int count = 0;
  if (driver.init(0) != CUDA_SUCCESS || driver.device_count(&count) != CUDA_SUCCESS || count == 0) {
    fail("count the devices", "there is none");
  }
  return count;
}

Gpu::Gpu(int ordinal) : driver_(load_driver()) {
  check(driver_.init(0), "initialise the driver");
  check(driver_.device(&device_, ordinal), "open the device");
  CUcontext context = nullptr;
  check(driver_.retain_primary(&context, device_), "create a context");
  check(driver_.set_current(context), "use the context");
  check(driver_.load_module(&module_, kKernelsPtx), "load the kernels");
}

void Gpu::check(CUresult result, std::string_view doing) const {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver_.error_name(result, &name);
  fail(doing, name != nullptr ? name : std::to_string(result));
}

CUdeviceptr Gpu::allocate(std::size_t bytes) const {
  CUdeviceptr address = 0;
  check(driver_.alloc(&address, bytes), "allocate " + std::to_string(bytes) + " bytes of VRAM");
  return address;
}

CUdeviceptr Gpu::variable(const char* name) const {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  check(driver_.get_global(&address, &bytes, module_, name), "find a variable");
  return address;
}

std::uint64_t Gpu::read_word(CUdeviceptr address) const {
  std::uint64_t value = 0;
  check(driver_.copy_to_host(&value, address, sizeof(value)), "read VRAM");
  return value;
}

void Gpu::write_word(CUdeviceptr address, std::uint64_t value) const {
  check(driver_.copy_to_device(address, &value, sizeof(value)), "write VRAM");
}

void Gpu::launch(const char* kernel, std::vector<std::uint64_t> arguments, std::uint64_t work_items,
                 CUstream stream) const {
  CUfunction function = nullptr;
  check(driver_.get_function(&function, module_, kernel), kernel);
  std::vector<void*> parameters;
  for (std::uint64_t& argument : arguments) parameters.push_back(&argument);
  const auto blocks =
      static_cast<unsigned>(std::clamp<std::uint64_t>(work_items / kBlock, 1, kMaxBlocks));
  const unsigned threads = work_items == 1 ? 1 : kBlock;
  check(
      driver_.launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters.data(), nullptr),
      kernel);
}

}  // namespace gcr::apps
