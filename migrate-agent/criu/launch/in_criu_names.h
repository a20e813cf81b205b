// Names that come from the processes that move. Their users decide what is under them, so a
// restoring CRIU must not use them as root.
#pragma once

#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

namespace gcr::criu::names {

/// From now on this CRIU, which restores and is in the images directory, uses names with the rights
/// of members, as kMemberRights has them. CRIU itself, and what it forks that is no member, makes,
/// changes and removes nothing by name. If the file is missing or damaged, there are no members.
void restrict_to_members();

/// The mode that an open with these flags has as its next argument; 0 if it has none.
inline mode_t mode_in(va_list rest, int flags) {
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return creates ? va_arg(rest, mode_t) : 0;
}

/// openat(2) with these rights.
int open_at(int directory, const char* path, int flags, mode_t mode);

}  // namespace gcr::criu::names
