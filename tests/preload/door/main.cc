// Every run has software GPUs of its own: in a mount namespace with its own /dev/shm, which is gone
// with the last process in it.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // With a real GPU there is nothing to keep apart.
  if (std::getenv("GCR_TEST_REAL_GPU") != nullptr) return RUN_ALL_TESTS();
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) != 0) {
    std::perror("cannot make a mount namespace (the tests need root)");
    return 1;
  }
  // CUDA's and HIP's.
  ::setenv("SOFTGPU_DEVICES",
           "GPU-0b3e52a1-0000-4000-8000-000000000001:4G,"
           "GPU-0b3e52a1-0000-4000-8000-000000000002:1G,"
           "GPU-0b3e52a100000001:4G,GPU-0b3e52a100000002:1G",
           1);
  return RUN_ALL_TESTS();
}
