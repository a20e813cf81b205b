// What a process could do with files by itself, and doing it in its name.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "migrate-agent/base/findings/catalogue.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::process {

/// Runs `work` in a thread of its own with the file system ids, the groups and the effective
/// capabilities of `who`, as far as the caller has these. An error says why that could not be done.
Status act_as(const proto::Credentials& who, const std::function<void()>& work);

/// Whether `who` is the owner of files of that user. No capability makes a process the owner.
bool is_owner(const proto::Credentials& who, uid_t user);

/// What a descriptor of a process lets it do: R_OK, W_OK.
std::uint32_t open_mode(pid_t pid, int number);

/// Whether the calling thread may do this with a held file, by the kernel's word: R_OK, W_OK, X_OK.
/// 0 or an errno. Nothing is opened.
int try_held(const UniqueFd& file, std::uint32_t access);

struct WantedAccess {
  std::string path;
  std::uint32_t access = 0;        ///< R_OK, W_OK, X_OK
  std::pair<dev_t, ino_t> file{};  ///< what must be found under that name
};

/// Looks up each file by its name with the file system ids, the groups and the capabilities of
/// `who`, in a thread of its own, and asks the kernel whether the access would be granted; nothing
/// is opened. Gives an errno for each: 0 if granted, ESTALE if the name leads elsewhere by now. An
/// error says why this could not be done.
Result<std::vector<int>> try_access(const proto::Credentials& who,
                                    const std::vector<WantedAccess>& wanted);

/// Adds "deleted-file-access" for each regular file without a name that `pid` has, but not open for
/// reading, and that none of its threads could open for reading: CRIU takes its content along
/// without asking who may read it, into a checkpoint that is the user's, for example. The program
/// counts: it may be executed by who may not read it. Opens nothing. kNotFound if the process is
/// gone; other errors if its rights cannot be tried.
Status look_at_removed_files(pid_t pid, findings::Findings& findings);

}  // namespace gcr::process
