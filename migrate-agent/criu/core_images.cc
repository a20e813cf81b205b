#include "migrate-agent/criu/core_images.h"

#include <fmt/format.h>

#include "migrate-agent/criu/images.h"

namespace gcr::criu {
namespace {

std::string name_of(pid_t in_namespace) { return fmt::format("core-{}.img", in_namespace); }

}  // namespace

Result<wire::Core> read_core(pid_t in_namespace, const ReadImage& read) {
  const std::string name = name_of(in_namespace);
  GCR_ASSIGN(const std::string image, read(name));
  const auto record = images::record_in(image, images::kCoreMagic);
  if (!record) return record.error().while_doing(name);
  wire::Core core;
  if (!core.ParseFromString(*record)) {
    return Error(Code::kDataLoss, "CRIU's image " + name + " cannot be read");
  }
  return core;
}

Status write_core(pid_t in_namespace, const wire::Core& core, const WriteImage& write) {
  return write(name_of(in_namespace),
               images::image_of(images::kCoreMagic, core.SerializeAsString()));
}

}  // namespace gcr::criu
