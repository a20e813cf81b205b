#include "migrate-agent/criu/runs/criu.h"

#include <signal.h>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "migrate-agent/criu/launch/session.h"
#include "migrate-agent/criu/runs/options.h"
#include "migrate-agent/criu/runs/paused_queues.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/transfer/images/scratch.h"
#include "src/base/uuid.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

constexpr char kCheckLog[] = "check.log";
constexpr int kCheckLogLevel = 2;
constexpr char kCpuImage[] = "cpuinfo.img";

Result<gcr::images::ScratchDirectory> temporary_directory() {
  return gcr::images::ScratchDirectory::create(fs::temp_directory_path() /
                                               ("gcr-criu-" + Uuid::random().to_string()));
}

/// In new namespaces, so that children that CRIU stops while it probes the kernel end with us.
Result<Session> start(const Command& command, const fs::path& images) {
  return Session::in_new_namespaces(command, {"swrk", std::to_string(launch::kRpcFd)}, 0, images);
}

Result<wire::Response> answer(Session& session, const wire::Request& request,
                              const fs::path& images) {
  auto response = session.call(request);
  if (!response) return explain(response.error(), images, request.opts().log_file());
  return response;
}

/// A request that nothing follows.
Result<wire::Response> ask(const Command& command, const wire::Request& request,
                           const fs::path& images) {
  GCR_ASSIGN(Session session, start(command, images));
  return answer(session, request, images);
}

wire::Request request_for(wire::RequestType type, bool keep_open = false) {
  wire::Request request;
  request.set_type(type);
  request.set_keep_open(keep_open);
  request.mutable_opts()->set_images_dir_fd(launch::kImagesFd);
  request.mutable_opts()->set_log_file(kCheckLog);
  request.mutable_opts()->set_log_level(kCheckLogLevel);
  return request;
}

/// Success, or CRIU's reason.
Status yes_or_no(const Result<wire::Response>& response, const fs::path& directory) {
  if (!response) return response.error();
  if (!response->success()) return refusal(*response, directory, kCheckLog);
  return {};
}

std::uint32_t number_of(const wire::VersionResponse& version) {
  return version.major_number() * 10000 + version.minor_number() * 100 + version.sublevel();
}

Status ability(const Result<wire::Response>& response, const fs::path& directory) {
  const Status able = yes_or_no(response, directory);
  if (!able) return able.error().while_doing("CRIU cannot work here");
  return {};
}

}  // namespace

Status check(const Command& command) {
  GCR_ASSIGN(const auto directory, temporary_directory());
  return ability(ask(command, request_for(wire::CHECK), directory.path()), directory.path());
}

Result<Facts> facts(const Command& command) {
  GCR_ASSIGN(const auto directory, temporary_directory());
  constexpr char kAsking[] = "cannot ask CRIU for its version";
  auto session = start(command, directory.path());
  if (!session) return session.error().while_doing(kAsking);
  const auto ask_next = [&](wire::RequestType type, bool keep_open) {
    return answer(*session, request_for(type, keep_open), directory.path());
  };
  const auto version = ask_next(wire::VERSION, true);
  if (!version) return version.error().while_doing(kAsking);
  Facts facts;
  facts.version = number_of(version->version());
  if (yes_or_no(ask_next(wire::CPUINFO_DUMP, true), directory.path())) {
    if (auto image = images::read_file(directory.path() / kCpuImage)) {
      facts.cpu_features = *std::move(image);
    }
  }
  facts.check = ability(ask_next(wire::CHECK, false), directory.path());
  return facts;
}

Status check_cpu_features(const Command& command, const std::string& features) {
  GCR_ASSIGN(const auto directory, temporary_directory());
  GCR_TRY(images::write_file(directory.path() / kCpuImage, features));
  return yes_or_no(ask(command, request_for(wire::CPUINFO_CHECK), directory.path()),
                   directory.path());
}

std::filesystem::path plugins_of(const Command& command) {
  if (!command.plugins.empty()) return command.plugins;
  const auto own = std::filesystem::path(command.argv.front()).parent_path() / "amdgpu";
  std::error_code ignored;
  return own.is_absolute() && std::filesystem::exists(own, ignored) ? own : "/usr/lib/criu";
}

Result<std::shared_ptr<const Plugin>> open_plugin(const Command& command, std::string_view name,
                                                  std::uint32_t criu_version) {
  GCR_ASSIGN(Plugin plugin, Plugin::open(plugins_of(command) / name, criu_version));
  return std::make_shared<const Plugin>(std::move(plugin));
}

Status resume_stopped(const procfs::Process& process) {
  const std::string doing = "cannot resume process " + std::to_string(process.pid());
  if (process.has_ended()) return Error(Code::kNotFound, doing + ": it is gone");
  for (const procfs::Process& task : procfs::open_tree(process)) {
    GCR_TRY(let_queues_go_on(task));
    const Status sent = task.send(SIGCONT);
    if (!sent && task.pid() == process.pid()) return sent.error().while_doing(doing);
  }
  return {};
}

}  // namespace gcr::criu
