// Release and commit that this program was built from.
#pragma once

namespace gcr {

/// Returns the release: "0.1.0".
const char* release();

/// Returns the commit as git describes it: "1a2b3c4d5e6f", with "-dirty" if files had been changed.
/// "unknown" if it was not built in a clone and -DGCR_COMMIT=… was not given.
const char* source_commit();

}  // namespace gcr
