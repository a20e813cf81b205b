// Which C library an image has, also if the image is hostile.
#include "container/c_library.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace gcr::container {
namespace {

namespace fs = std::filesystem;

#ifdef __aarch64__
constexpr const char* kLoader = "lib/ld-linux-aarch64.so.1";
#else
constexpr const char* kLoader = "lib64/ld-linux-x86-64.so.2";
#endif

class CLibrary : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "gcr-image-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    fs::create_directories((root_ / kLoader).parent_path());
    fs::create_directories(root_ / "usr/lib64");
    std::ofstream(root_ / kLoader) << "a loader";
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path library() const { return root_ / "usr/lib64/libc.so.6"; }

  void install(const char* file) const {
    fs::copy_file(file, library(), fs::copy_options::overwrite_existing);
  }

  std::string reason() const {
    const Status fits = check_c_library(root_);
    return fits ? "" : fits.error().message();
  }

  fs::path root_;
};

TEST_F(CLibrary, VersionIsTheHighestThatItDefines) {
  install(GCR_LIBC_28);
  EXPECT_EQ(c_library_minor(root_).value(), 28U);
  EXPECT_EQ(reason(), "");
}

TEST_F(CLibrary, OlderOneIsRefused) {
  install(GCR_LIBC_27);
  EXPECT_EQ(reason(), "its image has the GNU C library 2.27, and the preload library needs 2.28");
}

TEST_F(CLibrary, ThatOfThisMachineIsAccepted) { EXPECT_TRUE(check_c_library("/")); }

TEST_F(CLibrary, ImageWithoutLoaderHasNone) {
  install(GCR_LIBC_28);
  fs::remove(root_ / kLoader);
  EXPECT_TRUE(reason().starts_with("its image has no GNU C library: /lib")) << reason();
}

TEST_F(CLibrary, AbsoluteLinksStayInTheImage) {
  fs::create_directories(root_ / "opt");
  fs::copy_file(GCR_LIBC_28, root_ / "opt/libc-real.so");
  fs::create_symlink("/opt/libc-real.so", library());
  EXPECT_EQ(reason(), "");
}

TEST_F(CLibrary, LinksOutOfTheImageFindNothing) {
  for (const std::string& target :
       {std::string(GCR_LIBC_28), "../../../../../../.." + std::string(GCR_LIBC_28),
        std::string("/proc/self/exe")}) {
    fs::remove(library());
    fs::create_symlink(target, library());
    EXPECT_EQ(c_library_minor(root_).error().code(), Code::kNotFound) << target;
  }
}

TEST_F(CLibrary, FifosAndDirectoriesAreNotOpened) {
  ASSERT_EQ(::mkfifo(library().c_str(), 0644), 0);
  EXPECT_TRUE(reason().ends_with("libc.so.6 is not a regular file")) << reason();
  fs::remove(library());
  fs::create_directory(library());
  EXPECT_TRUE(reason().ends_with("libc.so.6 is not a regular file")) << reason();
}

TEST_F(CLibrary, MissingRootIsNamed) {
  EXPECT_EQ(check_c_library("/absent").error().message(),
            "its root /absent cannot be opened: No such file or directory");
}

/// The bytes of a library that would be accepted.
std::vector<char> accepted_library() {
  std::ifstream file(GCR_LIBC_28, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST_F(CLibrary, TruncatedLibraryIsRefusedOrHasItsVersion) {
  const std::vector<char> bytes = accepted_library();
  constexpr std::size_t kStep = 61;
  for (std::size_t size = 0; size < bytes.size(); size += kStep) {
    write(library(), {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)});
    EXPECT_LE(c_library_minor(root_).value_or(0), 28U) << size;
    if (size < 1000) {
      EXPECT_EQ(reason(), "the libc.so.6 of its image is not a GNU C library for this machine");
    }
  }
}

TEST_F(CLibrary, NoChangedByteIsTrusted) {
  const std::vector<char> bytes = accepted_library();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (bytes[at] == 0 && at > 512) continue;
    std::vector<char> changed = bytes;
    changed[at] = static_cast<char>(~changed[at]);
    write(library(), changed);
    (void)c_library_minor(root_);  // ends, and reads nothing outside of its buffers
  }
}

TEST_F(CLibrary, OneForAnotherMachineIsRefused) {
  std::vector<char> bytes = accepted_library();
  bytes[18] = 8;  // e_machine: MIPS
  write(library(), bytes);
  EXPECT_EQ(reason(), "the libc.so.6 of its image is not a GNU C library for this machine");
}

}  // namespace
}  // namespace gcr::container
