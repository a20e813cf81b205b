#include "src/cli/ask_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <cstdio>

#include "src/cli/agent_call.h"
#include "src/cli/exit_code.h"
#include "src/cli/host_text.h"
#include "src/cli/status_text.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {
namespace {

using control::printable;
using google::protobuf::Struct;

/// The agent may have to wait for others before it answers these.
constexpr std::chrono::milliseconds kCancelTimeout = std::chrono::seconds(30);
constexpr std::chrono::milliseconds kResolveTimeout = std::chrono::minutes(5);
constexpr std::chrono::milliseconds kWatchInterval = std::chrono::seconds(1);

/// What is printed.
using Text = Result<std::string>;

std::vector<proto::MigrationStatus> to_vector(
    const google::protobuf::RepeatedPtrField<proto::MigrationStatus>& migrations) {
  return {migrations.begin(), migrations.end()};
}

std::string show(const std::vector<proto::MigrationStatus>& migrations, bool json) {
  return json ? status_json(migrations) + "\n" : status_table(migrations);
}

/// What an order to a migration answers where it has nothing to tell.
Text done(const AskOptions& options, const Uuid& id, const char* what) {
  if (!options.json) return fmt::format("migration {} {}\n", id.to_string(), what);
  Struct object;
  (*object.mutable_fields())["migration_id"].set_string_value(id.to_string());
  return to_json(object) + "\n";
}

asio::awaitable<Text> cancel(const Agent& agent, const AskOptions& options, Uuid id) {
  proto::Envelope question;
  question.mutable_cancel_request()->set_migration_id(to_bytes(id));
  const auto answer = co_await ask(agent, question, kCancelTimeout);
  GCR_CO_TRY(answer);
  co_return done(options, id, "is cancelled; the process stays at the source");
}

asio::awaitable<Text> go_on(const Agent& agent, const AskOptions& options, Uuid id) {
  proto::Envelope question;
  question.mutable_continue_request()->set_migration_id(to_bytes(id));
  const auto answer = co_await ask(agent, question);
  GCR_CO_TRY(answer);
  co_return done(options, id, "goes on to its switchover");
}

asio::awaitable<Text> adjust(const Agent& agent, const AskOptions& options, Uuid id) {
  proto::Envelope question;
  proto::AdjustRequest& request = *question.mutable_adjust_request();
  request.set_migration_id(to_bytes(id));
  if (options.max_bandwidth_bytes) request.set_max_bandwidth_bytes(*options.max_bandwidth_bytes);
  if (options.downtime_limit_ms) request.set_downtime_limit_ms(*options.downtime_limit_ms);
  const auto answer = co_await ask(agent, question);
  GCR_CO_TRY(answer);
  co_return done(options, id, "is changed");
}

asio::awaitable<Text> status(const Agent& agent, const AskOptions& options, Uuid id) {
  proto::Envelope question;
  question.mutable_status_request()->set_migration_id(to_bytes(id));
  const auto answer = co_await ask(agent, question);
  GCR_CO_TRY(answer);
  co_return show(to_vector(answer->status_reply().migrations()), options.json);
}

/// Shows every answer but the last, which is what is given.
asio::awaitable<Text> watch(const Agent& agent, const AskOptions& options, Uuid id) {
  proto::Envelope question;
  question.mutable_status_request()->set_migration_id(to_bytes(id));
  asio::steady_timer pause(co_await asio::this_coro::executor);
  TerminalBlock block;
  const bool in_place = !options.json && is_terminal();
  for (std::string last;;) {
    const auto answer = co_await ask(agent, question);
    block.erase();
    GCR_CO_TRY(answer);
    const auto migrations = to_vector(answer->status_reply().migrations());
    std::string text = show(migrations, options.json);
    if (std::ranges::all_of(migrations, &proto::MigrationStatus::finished)) co_return text;
    if (in_place) {
      block.draw(status_lines(migrations, terminal_size().columns));
    } else if (text != last) {
      fmt::print("{}", text);
      std::fflush(stdout);
      last = std::move(text);
    }
    pause.expires_after(kWatchInterval);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

asio::awaitable<Text> list(const Agent& agent, const AskOptions& options) {
  proto::Envelope question;
  question.mutable_list_request()->set_finished(options.all);
  const auto answer = co_await ask(agent, question);
  GCR_CO_TRY(answer);
  co_return show(to_vector(answer->list_reply().migrations()), options.json);
}

asio::awaitable<Text> host(const Agent& agent, const AskOptions& options) {
  proto::Envelope question;
  question.mutable_host_request();
  const auto answer = co_await ask(agent, question);
  GCR_CO_TRY(answer);
  co_return options.json ? host_json(answer->host_reply()) + "\n"
                         : host_table(answer->host_reply());
}

asio::awaitable<Text> resolve(const Agent& agent, const AskOptions& options, Uuid id) {
  proto::Envelope question;
  proto::ResolveRequest& request = *question.mutable_resolve_request();
  request.set_migration_id(to_bytes(id));
  request.set_decision(options.run_here ? proto::ResolveRequest::RUN_HERE
                                        : proto::ResolveRequest::DISCARD_HERE);
  request.set_peer_is_gone(options.peer_is_gone);
  request.set_pid(options.pid);
  const auto answer = co_await ask(agent, question, kResolveTimeout);
  GCR_CO_TRY(answer);
  const proto::ResolveReply& reply = answer->resolve_reply();
  if (!options.json) {
    co_return fmt::format("{}\n{}", printable(reply.text()), status_table({reply.status()}));
  }
  Struct object;
  (*object.mutable_fields())["text"].set_string_value(printable(reply.text()));
  *(*object.mutable_fields())["status"].mutable_struct_value() = status_struct(reply.status());
  co_return to_json(object) + "\n";
}

asio::awaitable<Text> run(const Agent& agent, const AskOptions& options) {
  if (options.kind == AskOptions::Kind::kList) co_return co_await list(agent, options);
  if (options.kind == AskOptions::Kind::kHost) co_return co_await host(agent, options);
  const auto id = co_await find_migration(agent, options.id);
  GCR_CO_TRY(id);
  switch (options.kind) {
    case AskOptions::Kind::kCancel:
      co_return co_await cancel(agent, options, *id);
    case AskOptions::Kind::kStatus:
      if (options.watch) co_return co_await watch(agent, options, *id);
      co_return co_await status(agent, options, *id);
    case AskOptions::Kind::kContinue:
      co_return co_await go_on(agent, options, *id);
    case AskOptions::Kind::kSet:
      co_return co_await adjust(agent, options, *id);
    default:
      co_return co_await resolve(agent, options, *id);
  }
}

}  // namespace

int ask_command(const AskOptions& options) {
  const auto tls = tls_for(options.agent, options.tls);
  if (!tls) return fail(ExitCode::kUsage, tls.error());
  const Agent agent{options.agent, *tls};
  Text text = Error(Code::kInternal, "internal error: unexpected exception");
  asio::io_context io(1);
  asio::co_spawn(io, run(agent, options), [&](const std::exception_ptr& exception, Text result) {
    if (!exception) text = std::move(result);
  });
  io.run();
  if (!text) return fail(untouched_exit_code(text.error().code()), text.error());
  fmt::print("{}", *text);
  return static_cast<int>(ExitCode::kMigrated);
}

}  // namespace gcr::cli
