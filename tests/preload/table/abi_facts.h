// Sizes, offsets and values, listed twice: from this project's declarations and from the vendor's
// header. The macros make facts of names in a braced list of AbiFact, after the declarations to
// compare.
#pragma once

#include <cstddef>
#include <vector>

#define GCR_VALUE(name) {#name, static_cast<long long>(name)},
#define GCR_SIZE(type)                                     \
  {"sizeof " #type, static_cast<long long>(sizeof(type))}, \
      {"alignof " #type, static_cast<long long>(alignof(type))},
#define GCR_OFFSET(type, field) {#type "." #field, static_cast<long long>(offsetof(type, field))},

namespace gcr::preload {

struct AbiFact {
  const char* what;
  long long value;
};

std::vector<AbiFact> abi_facts_ours();
std::vector<AbiFact> abi_facts_theirs();

}  // namespace gcr::preload
