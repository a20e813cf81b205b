// Build-ids of mapped files, whose content is untrusted.
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "migrate-agent/process/inspect/elf.h"
#include "src/base/unique_fd.h"
#include "tests/fuzz/input.h"

namespace gcr::fuzz {

std::vector<std::string> seeds() {
  // The beginning of this program, with its headers and its note.
  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::string head(1024, '\0');
  self.read(head.data(), static_cast<std::streamsize>(head.size()));
  return {head};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const gcr::UniqueFd file(::memfd_create("elf", MFD_CLOEXEC));
  gcr::fuzz::require(::ftruncate(file.get(), 0) == 0, "an empty file");
  gcr::fuzz::require(::pwrite(file.get(), data, size, 0) == static_cast<ssize_t>(size), "a file");
  const std::string id = gcr::process::elf_build_id(file.get());
  gcr::fuzz::require(id.find_first_not_of("0123456789abcdef") == std::string::npos, "hexadecimal");
  return 0;
}
