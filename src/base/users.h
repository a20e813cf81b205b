// Names and ids of this host, its users and groups. Thread-safe; asks the name service about users
// and groups, which may block.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gcr {

/// Returns this host's name, or "localhost" if the kernel does not say.
std::string host_name();

/// Returns the name; empty if the host has none for the id.
std::string user_name(uid_t uid);
std::string group_name(gid_t gid);

/// Returns the name, or "uid 1000" or "gid 1000" if there is none.
std::string describe_user(uid_t uid);
std::string describe_group(gid_t gid);

/// Returns the id of the user called `name`; a number is returned as it is. None if the host has no
/// such user.
std::optional<uid_t> user_id(const std::string& name);

/// Returns the user's primary group; none if the host has no such user.
std::optional<gid_t> primary_group(uid_t uid);

/// Returns the groups that a login of the user would have now, including the primary one. Empty if
/// the host has no such user.
std::vector<gid_t> groups_of(uid_t uid);

}  // namespace gcr
