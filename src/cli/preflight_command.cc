#include "src/cli/preflight_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <cstdio>

#include "src/cli/agent_call.h"
#include "src/cli/exit_code.h"
#include "src/cli/host_text.h"
#include "src/cli/status_text.h"

namespace gcr::cli {
namespace {

using control::printable;
using google::protobuf::ListValue;
using google::protobuf::Struct;

/// Two hosts are looked at, one after the other.
constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(2);
/// Goes up when a field changes its meaning or goes away.
constexpr int kSchema = 1;

const char* severity_name(const proto::Finding& finding) {
  return finding.severity() == proto::Finding::WARNING ? "warning" : "blocker";
}

class Object {
 public:
  void set(const std::string& key, const std::string& text) {
    (*object_.mutable_fields())[key].set_string_value(printable(text));
  }
  void set(const std::string& key, double number) {
    (*object_.mutable_fields())[key].set_number_value(number);
  }
  void set(const std::string& key, bool value) {
    (*object_.mutable_fields())[key].set_bool_value(value);
  }
  void set(const std::string& key, Object object) {
    *(*object_.mutable_fields())[key].mutable_struct_value() = std::move(object.object_);
  }
  void set(const std::string& key, std::vector<Object> objects) {
    ListValue& list = *(*object_.mutable_fields())[key].mutable_list_value();
    for (Object& one : objects) {
      *list.add_values()->mutable_struct_value() = std::move(one.object_);
    }
  }
  const Struct& get() const { return object_; }

 private:
  Struct object_;
};

double number(std::uint64_t value) { return static_cast<double>(value); }

Object finding_object(const proto::Finding& finding) {
  Object object;
  object.set("id", finding.id());
  object.set("severity", std::string(severity_name(finding)));
  object.set("host", finding.host());
  object.set("found", finding.found());
  object.set("why", finding.why());
  object.set("remedy", finding.remedy());
  return object;
}

Object process_object(const proto::CheckReply& reply) {
  const proto::ProcessFacts process =
      reply.members().empty() ? proto::ProcessFacts() : reply.members(0);
  Object object;
  object.set("processes", number(reply.members_size()));
  object.set("command", process.command());
  object.set("uid", number(process.uid()));
  object.set("user", process.user());
  object.set("threads", number(process.threads()));
  object.set("resident_bytes", number(process.resident_bytes()));
  object.set("under_preload", process.under_preload());
  object.set("vram_bytes", number(reply.vram_bytes()));
  std::vector<Object> gpus;
  for (const proto::GpuUse& use : reply.gpus()) {
    gpus.emplace_back();
    gpus.back().set("uuid", gpu_name(use.uuid()));
    gpus.back().set("vram_bytes", number(use.vram_bytes()));
  }
  object.set("gpus", std::move(gpus));
  return object;
}

Object host_object(const proto::HostFacts& host) {
  Object object;
  object.set("software", host.software());
  object.set("kernel", host.kernel());
  object.set("cpu_model", host.cpu_model());
  object.set("driver_version", number(static_cast<std::uint64_t>(host.driver_version())));
  object.set("driver_release", host.driver_release());
  object.set("criu_version", number(host.criu_version()));
  object.set("memory_available_bytes", number(host.memory_available_bytes()));
  object.set("hugepages_free_bytes", number(host.hugepages_free_bytes()));
  std::vector<Object> gpus;
  for (const proto::Gpu& gpu : host.gpus()) {
    gpus.emplace_back();
    gpus.back().set("uuid", gpu_name(gpu.uuid()));
    gpus.back().set("name", gpu.name());
    gpus.back().set("total_bytes", number(gpu.total_bytes()));
    gpus.back().set("allowed", gpu.allowed());
  }
  object.set("gpus", std::move(gpus));
  return object;
}

std::ptrdiff_t blockers_of(const proto::CheckReply& reply) {
  return std::ranges::count_if(reply.findings(), [](const proto::Finding& finding) {
    return finding.severity() != proto::Finding::WARNING;
  });
}

asio::awaitable<Result<proto::CheckReply>> check(const Agent& agent,
                                                 const PreflightOptions& options) {
  const MigrateOptions& wanted = options.migrate;
  proto::Envelope question;
  proto::MigrateRequest& request = *question.mutable_check_request()->mutable_migrate();
  request.set_pid(wanted.pid);
  request.set_destination(wanted.destination.to_string());
  request.set_lanes(wanted.lanes);
  request.set_transport(wanted.transport);
  request.set_plaintext(wanted.plaintext);
  request.set_no_prefill(wanted.no_prefill);
  auto answer = co_await ask(agent, question, kPatience);
  GCR_CO_TRY(answer);
  co_return std::move(*answer->mutable_check_reply());
}

}  // namespace

bool is_ready(const proto::CheckReply& reply) { return blockers_of(reply) == 0; }

std::string preflight_text(const proto::CheckReply& reply) {
  std::string text;
  for (const proto::Finding& finding : reply.findings()) {
    text += fmt::format("{} {} at the {}\n  found   {}\n  why     {}\n  remedy  {}\n\n",
                        severity_name(finding), printable(finding.id()), printable(finding.host()),
                        printable(finding.found()), printable(finding.why()),
                        printable(finding.remedy()));
  }
  const auto blockers = blockers_of(reply);
  if (blockers == 0) return text + "ready\n";
  return text + fmt::format("refused: {} blocker{}\n", blockers, blockers == 1 ? "" : "s");
}

std::string preflight_json(const proto::CheckReply& reply) {
  Object object;
  object.set("schema", double{kSchema});
  object.set("ready", is_ready(reply));
  std::vector<Object> findings;
  for (const proto::Finding& finding : reply.findings()) {
    findings.push_back(finding_object(finding));
  }
  object.set("findings", std::move(findings));
  object.set("process", process_object(reply));
  Object hosts;
  hosts.set("source", host_object(reply.source()));
  hosts.set("destination", host_object(reply.destination()));
  object.set("hosts", std::move(hosts));
  return to_json(object.get()) + "\n";
}

int preflight_command(const PreflightOptions& options) {
  auto tls = tls_for(options.migrate.source, options.migrate.tls);
  if (!tls) return fail(ExitCode::kUsage, tls.error());
  const Agent agent{options.migrate.source, std::move(*tls)};
  Result<proto::CheckReply> reply = Error(Code::kInternal, "internal error: unexpected exception");
  asio::io_context io(1);
  asio::co_spawn(io, check(agent, options),
                 [&](const std::exception_ptr& exception, Result<proto::CheckReply> result) {
                   if (!exception) reply = std::move(result);
                 });
  io.run();
  if (!reply) return fail(untouched_exit_code(reply.error().code()), reply.error());
  fmt::print("{}", options.migrate.json ? preflight_json(*reply) : preflight_text(*reply));
  return static_cast<int>(is_ready(*reply) ? ExitCode::kMigrated : ExitCode::kRefused);
}

}  // namespace gcr::cli
