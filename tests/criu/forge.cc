#include "tests/criu/forge.h"

#include <functional>
#include <map>
#include <stdexcept>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/launch/criu_rpc.pb.h"

namespace gcr::criu::test {
namespace {

constexpr std::uint32_t kOther = 4242;

using Forge = std::function<void(wire::Creds&)>;

const std::map<std::string, Forge>& forgeries() {
  static const std::map<std::string, Forge> forgeries = {
      {"uid",
       [](wire::Creds& creds) {
         creds.set_uid(kOther);
         creds.set_euid(kOther);
         creds.set_suid(kOther);
         creds.set_fsuid(kOther);
       }},
      {"gid", [](wire::Creds& creds) { creds.set_egid(kOther); }},
      {"group", [](wire::Creds& creds) { creds.add_groups(kOther); }},
      {"capability", [](wire::Creds& creds) { creds.set_cap_eff(0, creds.cap_eff(0) ^ 1); }},
      {"bounding", [](wire::Creds& creds) { creds.set_cap_bnd(0, creds.cap_bnd(0) ^ 1); }},
      {"no_new_privs", [](wire::Creds& creds) { creds.set_no_new_privs(1); }},
      {"securebits", [](wire::Creds& creds) { creds.set_secbits(1); }},
  };
  return forgeries;
}

}  // namespace

void forge_credentials(const std::filesystem::path& directory, const std::string& field) {
  bool forged = false;
  for (const std::string& name : images::names(directory)) {
    if (!name.starts_with("core-")) continue;
    const auto image = images::read_file(directory / name);
    const auto record = image ? images::record_in(*image, images::kCoreMagic) : image;
    wire::Core core;
    if (!record || !core.ParseFromString(*record)) throw std::runtime_error("cannot read " + name);
    forgeries().at(field)(*core.mutable_thread_core()->mutable_creds());
    const auto written = images::write_file(
        directory / name, images::image_of(images::kCoreMagic, core.SerializeAsString()));
    if (!written) throw std::runtime_error(written.error().message());
    forged = true;
  }
  if (!forged) throw std::runtime_error("no core image in " + directory.string());
}

}  // namespace gcr::criu::test
