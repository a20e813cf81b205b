// The configuration of a container (config.json of the OCI runtime specification), and what
// gcr-runtime changes in it. Everything else stays as it is, in its order.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "src/base/result.h"

namespace gcr::container {

using Spec = nlohmann::ordered_json;

/// Parses a configuration. kInvalidArgument, with the position, if it is not a JSON object.
Result<Spec> parse_spec(const std::string& text);

/// Returns why a container is none of those that move, as a clause about it; none if it may be
/// edited.
std::optional<std::string> out_of_scope(const Spec& spec);

/// Returns why gcr-init cannot run in the container, as a clause about it; none if it can. The
/// image is not examined.
std::optional<std::string> unfit(const Spec& spec);

/// Returns the key of the migration that the container asks to receive; none if it asks for none.
/// kInvalidArgument if that is not a key, or if annotation and variable differ.
Result<std::optional<std::string>> receive_key(const Spec& spec);

/// Returns the root directory; empty if the configuration has none.
std::filesystem::path root_of(const Spec& spec, const std::filesystem::path& bundle);

/// What is put into a container.
struct Insertion {
  std::filesystem::path init;
  std::filesystem::path library;
  std::optional<std::string> key;  ///< of the migration that it receives; none: it runs its program
  bool allow_userfaultfd = true;
};

/// Returns the control group that the engine chose (linux.cgroupsPath); empty if it left that to
/// the runtime.
std::string control_group_of(const Spec& spec);

/// Edits a configuration for which out_of_scope() and unfit() say nothing.
void insert(Spec& spec, const Insertion& insertion);

}  // namespace gcr::container
