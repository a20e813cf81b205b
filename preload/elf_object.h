// Reads the symbols and calls of one loaded object without the dynamic loader: for code that
// replaces dlsym and therefore cannot call it.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>

namespace gcr::preload {

/// A view of one loaded object's dynamic symbols. Owns nothing; valid while the object stays
/// loaded, as it does inside a dl_iterate_phdr callback. Calls no function of another object.
class ElfObject {
 public:
  /// From the address that the object was loaded at, and its dynamic section (may be null).
  ElfObject(ElfW(Addr) base, const ElfW(Dyn) * dynamic);

  /// The address of a function that this object itself defines and exports, or null. Symbol
  /// versions are ignored. Indirect functions (IFUNC) are not found. Neither locks nor allocates.
  void* find_function(const char* name) const;

  /// Where the loader has stored the address that this object calls `name` at, or null: it calls no
  /// such function through its procedure linkage table. Neither locks nor allocates.
  void** find_call(const char* name) const;

  /// The object's SONAME, or "".
  const char* soname() const { return soname_; }

 private:
  const ElfW(Sym) * find_by_gnu_hash(const char* name) const;
  const ElfW(Sym) * find_by_sysv_hash(const char* name) const;
  bool defines(std::uint32_t index, const char* name) const;

  ElfW(Addr) base_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const std::uint32_t* gnu_hash_ = nullptr;
  const std::uint32_t* sysv_hash_ = nullptr;
  const ElfW(Rela) * calls_ = nullptr;
  std::size_t calls_bytes_ = 0;
  const char* soname_ = "";
};

/// The dynamic section of a loaded object, or null.
const ElfW(Dyn) * dynamic_section(const dl_phdr_info& info);

/// Whether the address lies in one of the object's segments.
bool contains(const dl_phdr_info& info, const void* address);

/// Whether the loader has made that address of the object read-only after it had stored there
/// (PT_GNU_RELRO).
bool is_read_only(const dl_phdr_info& info, const void* address);

/// Calls `visit(ElfObject, const dl_phdr_info&)` for every loaded object in load order, until it
/// returns true. Returns whether it did. Holds the loader's lock meanwhile.
template <class Visitor>
bool visit_objects(Visitor&& visit) {
  return dl_iterate_phdr(
             [](dl_phdr_info* info, std::size_t, void* data) -> int {
               return (*static_cast<Visitor*>(data))(
                          ElfObject(info->dlpi_addr, dynamic_section(*info)), *info)
                          ? 1
                          : 0;
             },
             &visit) != 0;
}

}  // namespace gcr::preload
