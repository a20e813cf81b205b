// Extended attributes of files of any type, by descriptors. Any thread; blocking.
#pragma once

#include <string>
#include <string_view>

#include "migrate-agent/process/layer/rules.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::layer {

struct FoundAttributes {
  Attributes carried;
  Attributes overlay;    ///< what overlayfs keeps in an upper directory, without the prefix
  std::string left_out;  ///< one that a program has made and that cannot be carried
};

/// Reads those of a file. `overlay_prefix`: of overlayfs's own; "" if the file is in no upper
/// directory. kUnsupported if they are more than kMaxAttributeBytes, or a name cannot be carried.
Result<FoundAttributes> read_attributes(const UniqueFd& held, std::string_view overlay_prefix);

/// Gives the file exactly these of those that are carried. Its other attributes stay.
Status write_attributes(const UniqueFd& held, const Attributes& wanted);

}  // namespace gcr::layer
