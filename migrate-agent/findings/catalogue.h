// Every finding of preflight: its stable identifier, whether it forbids a migration, why it matters
// and what to do. docs/preflight.md has the same table for people.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::preflight {

struct Kind {
  std::string_view id;
  proto::Finding::Severity severity;
  std::string_view why;     ///< one sentence, as the next
  std::string_view remedy;  ///< what to do about it
};

/// All of them, in the order in which they are documented. Static.
std::span<const Kind> catalogue();

/// Where something was found.
enum class Side { kSource, kDestination };

/// A finding of this kind; `found` is a sentence without a final full stop, with names and figures.
/// Throws std::logic_error for an id that is not in the catalogue, which is a caller's bug.
proto::Finding make_finding(std::string_view id, Side side, std::string found);

/// The findings of one examination of a host or a process.
class Findings {
 public:
  explicit Findings(Side side) : side_(side) {}

  Side side() const { return side_; }
  /// At most kMostOfAKind of one kind: the last one says that there are more.
  void add(std::string_view id, std::string found);
  void take(std::vector<proto::Finding> findings);
  bool has_blocker() const;

  const std::vector<proto::Finding>& list() const { return list_; }
  std::vector<proto::Finding> release() { return std::move(list_); }

 private:
  static constexpr std::size_t kMostOfAKind = 64;

  Side side_;
  std::vector<proto::Finding> list_;
  std::map<std::string, std::size_t, std::less<>> added_;  ///< by id
};

bool is_blocker(const proto::Finding& finding);

/// "<found> [<id>]; ...": only the blockers, as the reason of a refusal.
std::string reason_of(const std::vector<proto::Finding>& findings);

/// "<found> [<id>]": a warning, as a note of a report.
std::string note_of(const proto::Finding& finding);

}  // namespace gcr::preflight
