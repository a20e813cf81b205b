// Driver functions that a program asked for and was not given, because no table knows them.
#pragma once

namespace gcr::preload {

/// Counts one lookup, and names the function in the log. Any thread; does not allocate.
void note_withheld(const char* name);

/// How many lookups there were.
unsigned withheld_lookups();

}  // namespace gcr::preload
