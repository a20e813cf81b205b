#include "src/cli/agent_command.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <cstdio>
#include <optional>

#include "src/cli/agent_request.h"
#include "src/cli/exit_code.h"

namespace gcr::cli {
namespace {

using control::printable;
using What = AgentOptions::What;

std::string time_of(std::int64_t unix_ms) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)));
}

std::string line_of(const proto::MigrationStatus& status) {
  std::string line = fmt::format(
      "{}  {:<11}  {:<9}  {}  pid {}  {} {}  {}", to_uuid(status.migration_id()).to_string(),
      printable(status.role()), printable(status.state()), time_of(status.began_unix_ms()),
      status.pid(), status.role() == "source" ? "to" : "from", printable(status.peer()),
      printable(status.command()));
  if (!status.phase().empty()) line += fmt::format("  [{}]", printable(status.phase()));
  if (!status.message().empty()) line += fmt::format("  ({})", printable(status.message()));
  if (status.operator_needed()) line += "  needs an operator: see `gcr-migrate resolve --help`";
  return line;
}

void print_json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    fmt::print("{}\n", text);
  }
}

proto::Envelope request_of(const AgentOptions& options, const Uuid& id) {
  proto::Envelope request;
  switch (options.what) {
    case What::kCancel:
      request.mutable_cancel_request()->set_migration_id(to_bytes(id));
      break;
    case What::kStatus:
      request.mutable_status_request()->set_migration_id(to_bytes(id));
      break;
    case What::kList:
      request.mutable_list_request()->set_finished(options.all);
      break;
    case What::kResolve: {
      proto::ResolveRequest& resolve = *request.mutable_resolve_request();
      resolve.set_migration_id(to_bytes(id));
      resolve.set_decision(options.run_here ? proto::ResolveRequest::RUN_HERE
                                            : proto::ResolveRequest::DISCARD_HERE);
      resolve.set_peer_is_gone(options.peer_is_gone);
      break;
    }
  }
  return request;
}

asio::awaitable<Result<proto::Envelope>> ask_agent(const AgentOptions& options,
                                                   const Agent& agent) {
  Uuid id;
  if (options.what != What::kList) {
    const auto found = co_await find_migration(agent, options.migration);
    GCR_CO_TRY(found);
    id = *found;
  }
  proto::Envelope request = request_of(options, id);
  co_return co_await ask(agent, std::move(request));
}

template <class Migrations>
void print_all(const Migrations& migrations) {
  for (const proto::MigrationStatus& status : migrations) fmt::print("{}\n", line_of(status));
}

void print_text(const proto::Envelope& reply) {
  if (reply.has_cancel_reply()) fmt::print("it is being given up; the process stays\n");
  if (reply.has_list_reply()) print_all(reply.list_reply().migrations());
  if (reply.has_status_reply()) print_all(reply.status_reply().migrations());
  if (reply.has_resolve_reply()) fmt::print("{}\n", printable(reply.resolve_reply().text()));
}

void print_json_reply(const proto::Envelope& reply) {
  if (reply.has_cancel_reply()) print_json(reply.cancel_reply());
  if (reply.has_list_reply()) print_json(reply.list_reply());
  if (reply.has_status_reply()) print_json(reply.status_reply());
  if (reply.has_resolve_reply()) print_json(reply.resolve_reply());
}

ExitCode exit_code_of(Code code) {
  switch (code) {
    case Code::kUnavailable:
      return ExitCode::kUnreachable;
    case Code::kPermissionDenied:
      return ExitCode::kNotAuthorised;
    case Code::kInvalidArgument:
      return ExitCode::kUsage;
    default:
      return ExitCode::kRefused;
  }
}

int fail(const Error& error) {
  fmt::print(stderr, "gcr-migrate: {}\n", printable(error.message()));
  return static_cast<int>(exit_code_of(error.code()));
}

}  // namespace

int agent_command(const AgentOptions& options) {
  auto tls = control::make_tls_context(options.tls);
  if (!tls) return fail(tls.error());
  const Agent agent{options.agent, *tls};
  asio::io_context io(1);
  std::optional<Result<proto::Envelope>> reply;
  asio::co_spawn(io, ask_agent(options, agent),
                 [&reply](const std::exception_ptr& broken, Result<proto::Envelope> result) {
                   if (!broken) reply = std::move(result);
                 });
  io.run();
  if (!reply) return fail(Error(Code::kInternal, "gcr-migrate failed where it cannot"));
  if (!*reply) return fail(reply->error());
  if (options.json) {
    print_json_reply(**reply);
  } else {
    print_text(**reply);
  }
  return 0;
}

}  // namespace gcr::cli
