// Driver functions that a program looked up and did not get, because no table knows them.
#pragma once

namespace gcr::preload {

/// Counts a withheld lookup, and logs the function's name. Any thread; does not allocate.
void note_withheld(const char* name);

/// Number of withheld lookups.
unsigned withheld_lookups();

}  // namespace gcr::preload
