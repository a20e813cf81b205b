// The HIP library as the agent uses it, in several releases, which the software one imitates.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <iostream>

#include "migrate-agent/gpu/device/drivers/drivers.h"
#include "migrate-agent/gpu/device/hip/driver.h"
#include "src/base/units.h"
#include "tests/support/sysfs_tree.h"

namespace gcr::device {
namespace {

/// Runs `body` in a child process with HIP of this release; returns its result.
bool with_release(const char* release, const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("SOFTHIP_RELEASE", release, 1);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

template <class Any>
bool succeeded(const Any& result) {
  if (!result) std::cerr << result.error().message() << "\n";
  return static_cast<bool>(result);
}

/// Another object that imports this object's memory reads what it wrote.
bool shares_memory() {
  const auto driver = hip::load();
  if (!succeeded(driver)) return false;
  const auto gpu = (*driver)->open((*driver)->gpus().front());
  if (!succeeded(gpu)) return false;
  auto made = (*gpu)->create(4 * kMiB, std::nullopt);
  if (!succeeded(made)) return false;
  const auto stream = (*gpu)->stream();
  if (!succeeded(stream)) return false;
  bool well = succeeded((*stream)->fill((*made)->address(), std::byte{0x5a}, 4 * kMiB)) &&
              succeeded((*stream)->synchronize());
  const auto imported =
      (*gpu)->import(std::move((*made)->duplicate_descriptor().value()), 4 * kMiB);
  if (!succeeded(imported)) return false;
  (*made).reset();
  std::vector<std::byte> bytes(4 * kMiB);
  well = well &&
         succeeded((*stream)->copy_out(bytes.data(), (*imported)->address(), bytes.size())) &&
         succeeded((*stream)->synchronize());
  return well && bytes == std::vector(bytes.size(), std::byte{0x5a});
}

TEST(Hip, ImportPassesDescriptorsAsEachReleaseExpects) {
  for (const char* const release : {"5.3", "5.7", "6.2", "7.0", "7.1"}) {
    EXPECT_TRUE(with_release(release, shares_memory)) << release;
  }
}

TEST(Hip, ReleaseWithoutVirtualMemoryIsRefused) {
  EXPECT_TRUE(with_release("5.2", [] {
    const auto driver = hip::load();
    return !driver && driver.error().code() == Code::kUnsupported &&
           driver.error().message() == "this host's HIP is too old; ROCm 5.3 or newer is needed";
  }));
}

TEST(Hip, GpuHasPciAddressAndNameFromSysfs) {
  EXPECT_TRUE(with_release("6.2", [] {
    const auto driver = hip::load();
    if (!succeeded(driver)) return false;
    const GpuInfo& gpu = (*driver)->gpus().front();
    std::cerr << gpu_name(gpu.uuid) << " " << gpu.pci_address << "\n";
    return gpu.vendor == Vendor::kAmd && gpu_name(gpu.uuid) == "GPU-00000000000000e4" &&
           gpu.pci_address.starts_with("0000:");
  }));
}

TEST(Hip, ProcessWithoutHipHasNoState) {
  EXPECT_TRUE(with_release("6.2", [] {
    const auto driver = hip::load();
    if (!succeeded(driver)) return false;
    const auto own = (*driver)->control(::getpid());
    const auto other = (*driver)->control(::getppid());
    return own->goes_with_dump() && succeeded(own->state()) &&
           *own->state() == Control::State::kRunning && own->restore_thread().value() == 0 &&
           (*driver)->is_in(::getpid()) && !(*driver)->is_in(::getppid()) &&
           other->state().error().code() == Code::kNotFound;
  }));
}

/// The search path leads to both libraries.
TEST(Hip, GpusOfBothVendorsAreListed) {
  const SysfsTree sysfs;
  sysfs.add_gpu({});
  EXPECT_TRUE(with_release("6.2", [&] {
    const auto driver = load_drivers(sysfs.path());
    if (!succeeded(driver) || (*driver)->gpus().size() != 2) return false;
    Gpus gpus(*driver);
    for (const GpuInfo& info : (*driver)->gpus()) {
      const auto gpu = gpus.on(info.uuid);
      if (!succeeded(gpu) || !succeeded((*gpu)->create(2 * kMiB, std::nullopt))) return false;
    }
    return (*driver)->gpus()[0].vendor == Vendor::kNvidia &&
           (*driver)->gpus()[1].vendor == Vendor::kAmd;
  }));
}

TEST(Hip, LibraryIsNotLoadedWithoutAKernelDriver) {
  const SysfsTree sysfs;
  EXPECT_TRUE(with_release("6.2", [&] {
    const auto driver = load_drivers(sysfs.path());
    return succeeded(driver) && (*driver)->gpus().size() == 1 &&
           (*driver)->gpus()[0].vendor == Vendor::kNvidia &&
           ::dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_NOLOAD) == nullptr;
  }));
}

}  // namespace
}  // namespace gcr::device
