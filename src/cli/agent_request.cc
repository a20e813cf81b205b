#include "src/cli/agent_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace gcr::cli {
namespace {

constexpr std::chrono::milliseconds kAnswerTimeout = std::chrono::minutes(2);
constexpr std::size_t kShortestPrefix = 8;

}  // namespace

asio::awaitable<Result<proto::Envelope>> ask(const Agent& agent, proto::Envelope request) {
  const control::Preface preface{control::ConnectionKind::kControl, {}};
  auto channel = co_await control::ControlChannel::connect(agent.endpoint, preface, agent.tls,
                                                           kConnectTimeout);
  GCR_CO_TRY(channel);
  auto reply = co_await (*channel)->call(request, kAnswerTimeout);
  (*channel)->close();
  co_return reply;
}

std::string to_bytes(const Uuid& uuid) { return {uuid.bytes.begin(), uuid.bytes.end()}; }

Uuid to_uuid(const std::string& bytes) {
  Uuid uuid;
  if (bytes.size() == uuid.bytes.size()) std::ranges::copy(bytes, uuid.bytes.begin());
  return uuid;
}

asio::awaitable<Result<Uuid>> find_migration(const Agent& agent, std::string text) {
  if (const auto whole = Uuid::parse(text)) co_return *whole;
  if (text.size() < kShortestPrefix) {
    co_return Error(
        Code::kInvalidArgument,
        fmt::format("\"{}\" names no migration: give its ID, or the first {} characters "
                    "of it at least",
                    control::printable(text), kShortestPrefix));
  }
  proto::Envelope request;
  request.mutable_list_request()->set_finished(true);
  const auto reply = co_await ask(agent, std::move(request));
  GCR_CO_TRY(reply);
  std::set<Uuid> found;
  for (const proto::MigrationStatus& status : reply->list_reply().migrations()) {
    const Uuid id = to_uuid(status.migration_id());
    if (id.to_string().starts_with(text)) found.insert(id);
  }
  if (found.size() == 1) co_return *found.begin();
  co_return Error(Code::kNotFound,
                  fmt::format("{} migrations at {} begin with \"{}\"", found.size(),
                              agent.endpoint.to_string(), control::printable(text)));
}

}  // namespace gcr::cli
