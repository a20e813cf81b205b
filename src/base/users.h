// Users and groups as this host names them. Thread-safe; asks the name service, which may block.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gcr {

/// Empty if the host has no name for it.
std::string user_name(uid_t uid);
std::string group_name(gid_t gid);

/// The name, or "uid 1000" or "gid 1000" if there is none.
std::string describe_user(uid_t uid);
std::string describe_group(gid_t gid);

/// A number is taken as it is. None if the host has no user of this name.
std::optional<uid_t> user_id(const std::string& name);

/// None if the host has no such user.
std::optional<gid_t> primary_group(uid_t uid);

/// The groups that a login of that user would have now, the primary one among them. Empty if the
/// host has no such user.
std::vector<gid_t> groups_of(uid_t uid);

}  // namespace gcr
