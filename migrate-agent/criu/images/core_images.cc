#include "migrate-agent/criu/images/core_images.h"

#include <fmt/format.h>

#include "migrate-agent/criu/images/images.h"

namespace gcr::criu {

std::string core_image(pid_t in_namespace) { return fmt::format("core-{}.img", in_namespace); }

Result<wire::Core> core_in(const std::string& image) {
  GCR_ASSIGN(const std::string record, images::record_in(image, images::kCoreMagic));
  wire::Core core;
  if (!core.ParseFromString(record)) return Error(Code::kDataLoss, "the image cannot be read");
  return core;
}

std::string image_of(const wire::Core& core) {
  return images::image_of(images::kCoreMagic, core.SerializeAsString());
}

}  // namespace gcr::criu
