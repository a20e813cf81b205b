// The build-id of an ELF file. The file may be anything: truncated, hostile, or not ELF. Not read
// by libelf: decision 15 in docs/design.md.
#pragma once

#include <string>

namespace gcr::process {

/// Lower-case hexadecimal digits of the GNU build-id note; empty if the file has none or is not
/// ELF.
std::string elf_build_id(int fd);

}  // namespace gcr::process
